//! The connections of each driver.

#[cfg(feature = "diesel")]
pub(crate) mod diesel;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "rusqlite")]
mod rusqlite;
