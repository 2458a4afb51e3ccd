//! A chart as drawings, a legend and a table of its numbers.

use super::table::TableView;
use crate::chart::{BarChart, LineChart};
use crate::document::printable;
use crate::svg::{self, Frame};

/// Frames for the page's text column and for a phone. The page scales drawings down in narrower
/// windows.
const WIDE: Frame<'_> = Frame { id: "", width: 820.0, plot_height: 230.0 };
const NARROW: Frame<'_> = Frame { id: "", width: 350.0, plot_height: 190.0 };

/// Maximum number of rows in a line chart's table.
const LINE_ROWS_MAX: usize = 60;

pub(super) struct FigureView {
    pub(super) title: String,
    /// The sample as SVG, and the name.
    pub(super) legend: Vec<(String, String)>,
    /// Drawings as SVG.
    pub(super) wide: String,
    pub(super) narrow: String,
    /// Facts included in the table but not in the drawing.
    pub(super) numbers_title: String,
    pub(super) numbers: TableView,
}

impl FigureView {
    pub(super) fn bars(chart: &BarChart, id: &str) -> Self {
        let names = chart.series.iter().enumerate();
        Self {
            title: printable(&chart.title),
            legend: legend(names.map(|(index, name)| (svg::bar_key(index), printable(name)))),
            wide: svg::bars(chart, &Frame { id: &format!("{id}-wide"), ..WIDE }),
            narrow: svg::bars(chart, &Frame { id: &format!("{id}-narrow"), ..NARROW }),
            numbers_title: "Numbers".to_owned(),
            numbers: TableView::new(&chart.to_table().titled("")),
        }
    }

    pub(super) fn lines(chart: &LineChart, id: &str) -> Self {
        let table = chart.to_table(LINE_ROWS_MAX).titled("");
        let (shown, places) = (table.rows().len(), chart.places().len());
        let series = chart.series.iter().enumerate();
        Self {
            title: printable(&chart.title),
            legend: legend(
                series
                    .map(|(index, series)| (svg::line_key(index, series), printable(&series.name))),
            ),
            wide: svg::lines(chart, &Frame { id: &format!("{id}-wide"), ..WIDE }),
            narrow: svg::lines(chart, &Frame { id: &format!("{id}-narrow"), ..NARROW }),
            numbers_title: if places > shown {
                format!("Numbers ({shown} of {places} points)")
            } else {
                "Numbers".to_owned()
            },
            numbers: TableView::new(&table),
        }
    }
}

/// Returns a legend, if there is more than one series.
fn legend(entries: impl Iterator<Item = (String, String)>) -> Vec<(String, String)> {
    let entries: Vec<_> = entries.collect();
    if entries.len() < 2 { Vec::new() } else { entries }
}
