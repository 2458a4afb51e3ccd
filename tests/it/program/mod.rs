//! The program as a program: its arguments, output, files, documents and format.

pub(crate) mod bad_input;
mod cli_doc;
mod decoder;
mod format_doc;
mod manual;
mod output;
mod package;
mod runbooks;
mod runner;
pub(crate) mod schemas;
mod terminal;
