//! The contract as cases.
