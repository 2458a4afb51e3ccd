//! Results for people: one model of a table, printed as text. Programs get JSON from the same
//! structures through serde.
//!
//! Knows nothing of drives.

mod table;

pub use table::{Align, Table};
