//! The page: sections and their blocks.

use std::collections::BTreeSet;

use askama::Template;

use super::figure::FigureView;
use super::table::TableView;
use crate::document::{Block, Document, NoteKind, Section, printable};

/// Minimum number of sections for a table of contents.
const CONTENTS_FROM: usize = 4;

impl Document {
    /// Returns the document as an HTML 5 page in UTF-8.
    pub fn to_html(&self) -> String {
        let mut ids = BTreeSet::new();
        let sections: Vec<_> =
            self.sections.iter().map(|section| SectionView::new(section, &mut ids)).collect();
        let page = Page {
            title: printable(&self.title),
            lead: printable(&self.lead),
            has_contents: sections.len() >= CONTENTS_FROM,
            sections,
        };
        page.render().expect("writing to a String does not fail")
    }
}

#[derive(Template)]
#[template(path = "page.html")]
struct Page {
    title: String,
    lead: String,
    has_contents: bool,
    sections: Vec<SectionView>,
}

struct SectionView {
    id: String,
    heading: String,
    blocks: Vec<BlockView>,
}

enum BlockView {
    Paragraph(String),
    Note { class: &'static str, word: &'static str, text: String },
    Table(TableView),
    Pairs(Vec<(String, String)>),
    Figure(FigureView),
    Preformatted(String),
}

impl SectionView {
    fn new(section: &Section, ids: &mut BTreeSet<String>) -> Self {
        let id = unique_id(&section.heading, ids);
        let blocks = section.blocks.iter().enumerate();
        let blocks = blocks.map(|(index, block)| BlockView::new(block, &format!("{id}-{index}")));
        Self { heading: printable(&section.heading), blocks: blocks.collect(), id: id.clone() }
    }
}

/// Returns an id that consists of the heading's letters, digits and hyphens, and a number if
/// another section already has this id.
///
/// Ids within a section append `-` and a number to its id. They cannot collide with the id of
/// another section, because its number follows `--`.
fn unique_id(heading: &str, ids: &mut BTreeSet<String>) -> String {
    let words = heading.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let words: Vec<_> = words.take(8).map(str::to_ascii_lowercase).collect();
    let slug = format!("part-{}", words.join("-")).trim_end_matches('-').to_owned();
    let mut id = slug.clone();
    let mut number = 2;
    while !ids.insert(id.clone()) {
        id = format!("{slug}--{number}");
        number += 1;
    }
    id
}

impl BlockView {
    fn new(block: &Block, id: &str) -> Self {
        match block {
            Block::Paragraph(text) => Self::Paragraph(printable(text)),
            Block::Note { kind, text } => Self::Note {
                class: match kind {
                    NoteKind::Note => "note",
                    NoteKind::Warning => "note warning",
                },
                word: kind.word(),
                text: printable(text),
            },
            Block::Table(table) => Self::Table(TableView::new(table)),
            Block::Pairs(pairs) => {
                let pairs = pairs.iter().map(|(key, value)| (printable(key), printable(value)));
                Self::Pairs(pairs.collect())
            }
            Block::Bars(chart) => Self::Figure(FigureView::bars(chart, id)),
            Block::Lines(chart) => Self::Figure(FigureView::lines(chart, id)),
            Block::Preformatted(text) => Self::Preformatted(printable(text)),
        }
    }
}
