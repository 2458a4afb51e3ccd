//! A document as a workbook, with a sheet for each section and its blocks one below another.
//!
//! Numbers are stored as numbers and displayed rounded; text is stored as text, even if it looks
//! like a formula. A chart is to the right of the table of its numbers and refers to them,
//! including its error bars. The workbook has no author and a fixed date, so that equal documents
//! produce equal bytes.
//!
//! ```text
//! A1  heading
//! A3  paragraph
//! A5  title of a table
//! A6  header  header  ...        chart, if the table is a chart's
//! A7  text    number  ...
//! ```

use std::collections::BTreeSet;
use std::io;

use rust_xlsxwriter::{
    Chart, ChartAxisLabelPosition, ChartErrorBars, ChartErrorBarsType, ChartFormat, ChartLine,
    ChartMarker, ChartMarkerType, ChartRange, ChartSolidFill, ChartType, ColNum, Color,
    DocProperties, ExcelDateTime, Format, FormatAlign, FormatBorder, Workbook, Worksheet,
    XlsxError,
};

use super::chart::{Axis, BarChart, LineChart, Scale};
use super::document::{Block, Document, Section, printable};
use super::flat::{Flat, Value};
use super::number::Number;
use super::table::{Cell, Column, Table};

/// Maximum length of a sheet name in characters.
const NAME_CHARS_MAX: usize = 31;

/// Characters that are not allowed in a sheet name.
const NAME_FORBIDDEN: &str = r"[]:*?/\";

/// Maximum length of a cell's text in UTF-16 units.
const TEXT_UNITS_MAX: usize = 32_767;

/// Minimum and maximum width of a column in characters.
const WIDTH_MIN: usize = 8;
const WIDTH_MAX: usize = 48;

/// Width and height of a chart in pixels, and the number of rows (of 20 pixels) that it covers,
/// plus one.
const CHART_SIZE: (u32, u32) = (640, 320);
const CHART_ROWS: u32 = 17;

/// Maximum row for which a table's header is frozen together with everything above it.
const FROZEN_ROWS_MAX: u32 = 8;

/// Colours of series, as in `svg`, by Okabe and Ito.
const COLOURS: [u32; 7] = [0x0072b2, 0xe69f00, 0x009e73, 0xcc79a7, 0x56b4e9, 0xd55e00, 0x6b6b6b];

impl Document {
    /// Returns the document as the bytes of an `.xlsx` file.
    ///
    /// # Errors
    ///
    /// A table has more rows (1,048,576) or columns (16,384) than a sheet.
    pub fn to_xlsx(&self) -> io::Result<Vec<u8>> {
        self.workbook().and_then(|mut workbook| workbook.save_to_buffer()).map_err(io::Error::other)
    }

    fn workbook(&self) -> Result<Workbook, XlsxError> {
        let mut workbook = Workbook::new();
        let created = ExcelDateTime::from_ymd(2000, 1, 1)?;
        let title = cut(&self.title, 255);
        workbook
            .set_properties(&DocProperties::new().set_title(title).set_creation_datetime(&created));
        let mut names = BTreeSet::new();
        for section in &self.sections {
            let name = sheet_name(&section.heading, &mut names);
            let mut sheet = Sheet::new(&name)?;
            sheet.fill(section)?;
            workbook.push_worksheet(sheet.finish()?);
        }
        if self.sections.is_empty() {
            // A workbook without sheets cannot be opened.
            workbook.add_worksheet();
        }
        Ok(workbook)
    }
}

/// Returns a valid name that is unique in the workbook, ignoring case.
fn sheet_name(heading: &str, names: &mut BTreeSet<String>) -> String {
    let legal = |c: char| if NAME_FORBIDDEN.contains(c) || c == '\n' { ' ' } else { c };
    let text: String = printable(heading).chars().map(legal).collect();
    let words: Vec<_> = text.split_whitespace().collect();
    let text = words.join(" ");
    // An apostrophe is not allowed at the beginning or end; "History" is reserved by Excel.
    let text = text.trim_matches('\'');
    let text = match text {
        "" => "Section",
        text if text.eq_ignore_ascii_case("history") => "History of it",
        text => text,
    };
    for number in 1.. {
        let end = if number == 1 { String::new() } else { format!(" {number}") };
        let name = cut(text, NAME_CHARS_MAX - end.len()).trim_end_matches([' ', '\'']).to_owned();
        let name = name + &end;
        if names.insert(name.to_lowercase()) {
            return name;
        }
    }
    unreachable!("some number is free")
}

/// Returns the longest prefix of `text` with at most `units_max` UTF-16 units.
fn cut(text: &str, units_max: usize) -> &str {
    let mut units = 0;
    let end = text.char_indices().find(|(_, c)| {
        units += c.len_utf16();
        units > units_max
    });
    &text[..end.map_or(text.len(), |(index, _)| index)]
}

/// A sheet that is filled from the top.
struct Sheet {
    worksheet: Worksheet,
    name: String,
    /// The next free row.
    row: u32,
    /// Number of characters in the widest cell of each column.
    widths: Vec<usize>,
    /// The row below the header of each table.
    headers: Vec<u32>,
}

impl Sheet {
    fn new(name: &str) -> Result<Self, XlsxError> {
        let mut worksheet = Worksheet::new();
        worksheet.set_name(name)?;
        let (widths, headers) = (Vec::new(), Vec::new());
        Ok(Self { worksheet, name: name.to_owned(), row: 0, widths, headers })
    }

    fn fill(&mut self, section: &Section) -> Result<(), XlsxError> {
        let heading = Format::new().set_bold().set_font_size(14);
        self.line(&section.heading, &heading)?;
        for block in &section.blocks {
            self.row += 1;
            self.block(block)?;
        }
        Ok(())
    }

    fn block(&mut self, block: &Block) -> Result<(), XlsxError> {
        let plain = Format::new();
        match block {
            Block::Paragraph(text) => self.line(text, &plain),
            Block::Note { kind, text } => {
                self.line(&format!("{}: {text}", kind.word()), &Format::new().set_bold())
            }
            Block::Table(table) => self.table(table).map(|_| ()),
            Block::Pairs(pairs) => {
                let muted = Format::new().set_font_color(Color::RGB(0x5b6066));
                for (key, value) in pairs {
                    self.text(self.row, 0, key, &muted)?;
                    self.text(self.row, 1, value, &plain)?;
                    self.widen(0, key.chars().count());
                    self.row += 1;
                }
                Ok(())
            }
            Block::Bars(chart) => self.bars(chart),
            Block::Lines(chart) => self.lines(chart),
            Block::Preformatted(text) => {
                let fixed = Format::new().set_font_name("Consolas");
                text.lines().try_for_each(|line| self.line(line, &fixed))
            }
        }
    }

    /// Writes text in a separate row, across the columns to its right.
    fn line(&mut self, text: &str, format: &Format) -> Result<(), XlsxError> {
        self.text(self.row, 0, text, format)?;
        self.row += 1;
        Ok(())
    }

    fn text(
        &mut self,
        row: u32,
        column: u16,
        text: &str,
        format: &Format,
    ) -> Result<(), XlsxError> {
        let text = printable(text);
        let text = cut(&text, TEXT_UNITS_MAX);
        self.worksheet.write_string_with_format(row, column, text, format)?;
        Ok(())
    }

    fn widen(&mut self, column: usize, chars: usize) {
        if self.widths.len() <= column {
            self.widths.resize(column + 1, 0);
        }
        self.widths[column] = self.widths[column].max(chars);
    }

    /// Writes a table with its title and header. Returns the range of its numbers.
    fn table(&mut self, table: &Table) -> Result<Written, XlsxError> {
        if !table.title().is_empty() {
            self.line(table.title(), &Format::new().set_bold())?;
        }
        let flat = Flat::new(table);
        if table.has_header() {
            self.header(&flat)?;
        }
        let first_row = self.row;
        for row in &flat.rows {
            for (column, value) in row.iter().enumerate() {
                self.value(column, value)?;
            }
            self.row += 1;
        }
        let rows = (first_row, self.row.saturating_sub(1).max(first_row));
        Ok(Written { rows, columns: flat.header.len() as u16, places: flat.places })
    }

    fn header(&mut self, flat: &Flat) -> Result<(), XlsxError> {
        let style = Format::new()
            .set_bold()
            .set_text_wrap()
            .set_align(FormatAlign::Top)
            .set_background_color(Color::RGB(0xeef1f3))
            .set_border_bottom(FormatBorder::Thin);
        for (index, name) in flat.header.iter().enumerate() {
            let is_number = |row: &Vec<Value>| matches!(row[index], Value::Number(..));
            let style = if flat.rows.iter().any(is_number) {
                style.clone().set_align(FormatAlign::Right)
            } else {
                style.clone()
            };
            self.text(self.row, column(index)?, name, &style)?;
            // Long names are wrapped.
            self.widen(index, name.chars().count().min(18));
        }
        self.row += 1;
        self.headers.push(self.row);
        Ok(())
    }

    fn value(&mut self, index: usize, value: &Value) -> Result<(), XlsxError> {
        match value {
            Value::Empty => {}
            Value::Text(text) => {
                self.text(self.row, column(index)?, text, &Format::new())?;
                self.widen(index, text.chars().count());
            }
            Value::Number(value, decimals) => {
                let decimals = usize::from(*decimals);
                let point = if decimals > 0 { "." } else { "" };
                let shown = format!("#,##0{point}{}", "0".repeat(decimals));
                let style = Format::new().set_num_format(shown);
                self.worksheet.write_number_with_format(
                    self.row,
                    column(index)?,
                    *value,
                    &style,
                )?;
                self.widen(index, format!("{value:.decimals$}").len() + 2);
            }
        }
        Ok(())
    }

    fn bars(&mut self, chart: &BarChart) -> Result<(), XlsxError> {
        let top = self.row;
        let written = self.table(&chart.to_table())?;
        let mut drawing = Chart::new(ChartType::Column);
        for (index, name) in chart.series.iter().enumerate() {
            let (values, deviations) = written.places[index + 1];
            let series = drawing.add_series();
            series
                .set_name(caption(name).as_str())
                .set_categories(&self.range(&written, 0)?)
                .set_values(&self.range(&written, values)?)
                .set_format(&mut ChartSolidFill::new().set_color(colour(index)).clone());
            if let Some(deviations) = deviations {
                let range = self.range(&written, deviations)?;
                series.set_y_error_bars(&error_bars(range));
            }
        }
        name_axes(&mut drawing, &chart.title, &chart.groups_title, &chart.axis);
        self.place(&mut drawing, chart.series.len(), top, &written)
    }

    /// Writes a line chart. Every line has separate columns for x and y, because its points may
    /// have different x values.
    fn lines(&mut self, chart: &LineChart) -> Result<(), XlsxError> {
        let top = self.row;
        let written = self.table(&points(chart))?;
        let mut drawing = Chart::new(ChartType::ScatterStraight);
        for (index, line) in chart.series.iter().enumerate() {
            let (x, (y, deviations)) = (written.places[2 * index].0, written.places[2 * index + 1]);
            let last = written.rows.0 + line.points.len().saturating_sub(1) as u32;
            let own = Written { rows: (written.rows.0, last), ..written.clone() };
            let series = drawing.add_series();
            series
                .set_name(caption(&line.name).as_str())
                .set_categories(&self.range(&own, x)?)
                .set_values(&self.range(&own, y)?);
            if line.is_joined {
                series
                    .set_marker(ChartMarker::new().set_none())
                    .set_format(ChartLine::new().set_width(1.75).set_color(colour(index)));
            } else {
                series
                    .set_marker(&dot(index))
                    .set_format(ChartFormat::new().set_line(ChartLine::new().set_hidden(true)));
            }
            series.set_secondary_axis(line.is_right && !chart.series[0].is_right);
            if let Some(deviations) = deviations {
                let range = self.range(&own, deviations)?;
                series.set_y_error_bars(&error_bars(range));
            }
        }
        name_axes(&mut drawing, &chart.title, &chart.x.heading(), &chart.y);
        match chart.x.scale {
            Scale::Log => drawing.x_axis().set_log_base(10),
            Scale::Doubling => drawing.x_axis().set_log_base(2),
            Scale::Linear | Scale::Percentile => drawing.x_axis(),
        };
        if let Some(axis) = &chart.right {
            drawing.y2_axis().set_name(caption(&axis.heading()).as_str());
        }
        self.place(&mut drawing, chart.series.len(), top, &written)
    }

    /// Inserts a chart to the right of its table, and moves the position of the next block below
    /// both.
    fn place(
        &mut self,
        drawing: &mut Chart,
        series: usize,
        top: u32,
        written: &Written,
    ) -> Result<(), XlsxError> {
        if series > 0 {
            drawing.set_width(CHART_SIZE.0).set_height(CHART_SIZE.1);
            self.worksheet.insert_chart(top, written.columns + 1, drawing)?;
            self.row = self.row.max(top + CHART_ROWS);
        }
        Ok(())
    }

    /// Returns the range of a written table's column, for use in formulas.
    fn range(&self, written: &Written, index: usize) -> Result<ChartRange, XlsxError> {
        let (column, (first, last)) = (column(index)?, written.rows);
        Ok(ChartRange::new_from_range(&self.name, first, column, last, column))
    }

    fn finish(mut self) -> Result<Worksheet, XlsxError> {
        for (index, chars) in self.widths.iter().enumerate() {
            let width = (*chars).clamp(WIDTH_MIN, WIDTH_MAX) + 2;
            self.worksheet.set_column_width(column(index)?, width as f64)?;
        }
        // With several tables, no header applies to the whole sheet, so only the heading is frozen.
        let frozen = match self.headers.as_slice() {
            [row] if *row <= FROZEN_ROWS_MAX => *row,
            _ => 1,
        };
        self.worksheet.set_freeze_panes(frozen, 0)?;
        Ok(self.worksheet)
    }
}

/// Range of a written table.
#[derive(Clone)]
struct Written {
    /// First and last row of the numbers.
    rows: (u32, u32),
    columns: u16,
    /// See [`Flat::places`].
    places: Vec<(usize, Option<usize>)>,
}

/// Converts a column number to the type used by the file format.
fn column(index: usize) -> Result<ColNum, XlsxError> {
    ColNum::try_from(index).map_err(|_| XlsxError::RowColumnLimitError)
}

fn colour(index: usize) -> Color {
    Color::RGB(COLOURS[index % COLOURS.len()])
}

/// Returns error bars whose lengths, up and down, are in a range.
fn error_bars(range: ChartRange) -> ChartErrorBars {
    let mut bars = ChartErrorBars::new();
    bars.set_type(ChartErrorBarsType::Custom(range.clone(), range));
    bars
}

/// Returns the markers of unconnected points.
fn dot(index: usize) -> ChartMarker {
    let mut fill = ChartSolidFill::new();
    fill.set_color(colour(index));
    let mut marker = ChartMarker::new();
    marker.set_type(ChartMarkerType::Circle).set_size(7).set_format(&mut fill);
    marker
}

/// Returns text for a chart that cannot be mistaken for a cell reference.
fn caption(text: &str) -> String {
    let text = printable(text);
    let text = cut(&text, 250);
    if text.starts_with('=') || text.contains('!') { format!(" {text} ") } else { text.to_owned() }
}

fn name_axes(drawing: &mut Chart, title: &str, x: &str, y: &Axis) {
    drawing.title().set_name(caption(title).as_str());
    drawing.x_axis().set_name(caption(x).as_str());
    drawing.y_axis().set_name(caption(&y.heading()).as_str());
    // If bars are negative, the names of groups stay below the plot.
    drawing.x_axis().set_label_position(ChartAxisLabelPosition::Low);
    if y.scale == Scale::Log {
        drawing.y_axis().set_log_base(10);
    }
}

/// Returns all points of a chart, with two columns for each line.
fn points(chart: &LineChart) -> Table {
    let columns = chart.series.iter().flat_map(|line| {
        let name = |axis: &Axis| Column::right(format!("{}: {}", line.name, axis.title));
        let y = chart.axis_of(line);
        [name(&chart.x).with_unit(&chart.x.unit), name(y).with_unit(&y.unit)]
    });
    let mut table = Table::with_columns(columns.collect()).titled(&chart.title);
    let rows = chart.series.iter().map(|line| line.points.len()).max().unwrap_or(0);
    for row in 0..rows {
        let cells = chart.series.iter().flat_map(|line| match line.points.get(row) {
            Some(point) => [Number::plain(point.x).into(), point.number().into()],
            None => [Cell::Empty, Cell::Empty],
        });
        table.push(cells.collect());
    }
    table
}

#[cfg(test)]
mod tests;
