//! The contents of a report, independent of its format: a title and sections of blocks, in reading
//! order.
//!
//! Text is plain text from any source; each printer escapes the markup of its format. A document
//! contains neither markup nor the current time, so equal documents are printed as equal bytes.

use super::chart::{BarChart, LineChart};
use super::table::Table;

/// A report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Document {
    /// Title.
    pub title: String,
    /// First paragraph: the result in one or two sentences; may be empty.
    pub lead: String,
    /// Sections, in reading order.
    pub sections: Vec<Section>,
}

impl Document {
    /// Returns a document without sections.
    pub fn new(title: impl Into<String>, lead: impl Into<String>) -> Self {
        Self { title: title.into(), lead: lead.into(), sections: Vec::new() }
    }

    /// Adds a section with this heading and returns it.
    pub fn section(&mut self, heading: impl Into<String>) -> &mut Section {
        self.sections.push(Section { heading: heading.into(), blocks: Vec::new() });
        self.sections.last_mut().expect("one was just added")
    }
}

/// A part of a document with a heading. In a workbook, it is one sheet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Section {
    /// Heading.
    pub heading: String,
    /// Blocks, in reading order.
    pub blocks: Vec<Block>,
}

impl Section {
    /// Adds a block.
    pub fn block(&mut self, block: impl Into<Block>) -> &mut Self {
        self.blocks.push(block.into());
        self
    }

    /// Adds a paragraph.
    pub fn paragraph(&mut self, text: impl Into<String>) -> &mut Self {
        self.block(Block::Paragraph(text.into()))
    }

    /// Adds a remark.
    pub fn note(&mut self, text: impl Into<String>) -> &mut Self {
        self.block(Block::Note { kind: NoteKind::Note, text: text.into() })
    }

    /// Adds a warning.
    pub fn warning(&mut self, text: impl Into<String>) -> &mut Self {
        self.block(Block::Note { kind: NoteKind::Warning, text: text.into() })
    }

    /// Adds names with values.
    pub fn pairs<K: Into<String>, V: Into<String>>(
        &mut self,
        pairs: impl IntoIterator<Item = (K, V)>,
    ) -> &mut Self {
        let pairs = pairs.into_iter().map(|(key, value)| (key.into(), value.into()));
        self.block(Block::Pairs(pairs.collect()))
    }

    /// Adds text whose line breaks and blanks are significant.
    pub fn preformatted(&mut self, text: impl Into<String>) -> &mut Self {
        self.block(Block::Preformatted(text.into()))
    }
}

/// Severity of a note.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoteKind {
    /// A remark.
    Note,
    /// A fact that readers must know to interpret the results.
    Warning,
}

impl NoteKind {
    /// Returns the word that precedes the note.
    pub(crate) fn word(self) -> &'static str {
        match self {
            NoteKind::Note => "Note",
            NoteKind::Warning => "Warning",
        }
    }
}

/// One block of a section.
#[derive(Clone, Debug, PartialEq)]
pub enum Block {
    /// Prose.
    Paragraph(String),
    /// An emphasized sentence.
    Note {
        /// Severity.
        kind: NoteKind,
        /// Text.
        text: String,
    },
    /// Rows under a header.
    Table(Table),
    /// Names with values, such as the environment of a measurement.
    Pairs(Vec<(String, String)>),
    /// Bars in groups.
    Bars(BarChart),
    /// Lines over a common axis.
    Lines(LineChart),
    /// Text whose line breaks and blanks are significant, such as a command or a configuration.
    Preformatted(String),
}

impl From<Table> for Block {
    fn from(table: Table) -> Self {
        Self::Table(table)
    }
}

impl From<BarChart> for Block {
    fn from(chart: BarChart) -> Self {
        Self::Bars(chart)
    }
}

impl From<LineChart> for Block {
    fn from(chart: LineChart) -> Self {
        Self::Lines(chart)
    }
}

/// Returns `text` without control characters other than line feeds. They could control a terminal
/// or corrupt a file, and names of devices and files are not trusted. Tabs and carriage returns
/// become spaces.
pub(crate) fn printable(text: &str) -> String {
    let printable = |c: char| match c {
        '\t' | '\r' => ' ',
        '\n' => '\n',
        c if c.is_control() => char::REPLACEMENT_CHARACTER,
        c => c,
    };
    text.chars().map(printable).collect()
}
