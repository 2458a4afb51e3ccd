//! A document as a self-contained HTML page without network access, scripts or fonts. Charts are
//! inline SVG in a wide and a narrow version; the page shows one of them. The numbers of every
//! chart are in a table that can be expanded.
//!
//! * `page`: sections and blocks; `figure`: charts; `table`: tables.
//!
//! The template (`page.html`) escapes all text, which is already formatted for display. Only the
//! output of `svg` is inserted unescaped. The page's policy forbids scripts and requests.

mod figure;
mod page;
mod table;
#[cfg(test)]
mod tests;
