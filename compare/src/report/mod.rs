//! What a comparison brings, and how it is shown: as text, as an HTML page, and as JSON by `serde`.

pub mod html;
pub(crate) mod row;
mod summary;
mod table;
