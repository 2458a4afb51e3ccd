//! Goal: a report's page is complete in a real browser: nothing fails, every chart is present, no
//! text overlaps another or is cut off, and a phone need not scroll sideways.
//!
//! Method: headless Chromium shows pages in frames as wide as a desktop, a tablet and a phone,
//! measures its layout, and writes the faults into the outer page. The browser's colour scheme
//! changes nothing but colours, which a unit test checks.

use std::fs;
use std::process::Command;

use pumice_report::{
    Axis, Bar, BarChart, Column, Document, LineChart, Number, Point, Scale, Table,
};

use crate::harness;

#[allow(dead_code, reason = "the library's tests use the rest of it")]
#[path = "../../../crates/pumice-report/src/sample.rs"]
mod sample;

/// Widths of the frames in pixels.
const WIDTHS: [u32; 4] = [1400, 900, 640, 390];

/// Writes each fault of each frame as a line of text, and the number of drawings inspected.
const MEASURE: &str = r#"
const wrong = [];
let drawings = 0, texts = 0;
for (const frame of document.querySelectorAll("iframe")) {
  const page = frame.contentDocument, root = page.documentElement, name = frame.title;
  const say = (what) => wrong.push(name + ": " + what);
  if (root.scrollWidth > root.clientWidth) say("scrolls sideways, " + root.scrollWidth);
  for (const svg of page.querySelectorAll("svg")) {
    const box = svg.getBoundingClientRect();
    const shown = getComputedStyle(svg.parentElement).display != "none";
    if (!shown) continue;
    if (!(box.width > 8 && box.height > 8)) say("a drawing without size");
    if (svg.getAttribute("role") == "img") drawings += 1;
    const labels = [...svg.querySelectorAll("text")].map((label) => {
      const at = label.getBoundingClientRect();
      return { text: label.textContent, at };
    });
    texts += labels.length;
    labels.forEach(({ text, at }, index) => {
      if (at.left < box.left - 1 || at.right > box.right + 1 || at.top < box.top - 1 ||
          at.bottom > box.bottom + 1) say("cut off: " + text);
      for (const other of labels.slice(index + 1)) {
        const across = Math.min(at.right, other.at.right) - Math.max(at.left, other.at.left);
        const down = Math.min(at.bottom, other.at.bottom) - Math.max(at.top, other.at.top);
        // Boxes include the space for accents and descenders, which may touch.
        if (across > 1 && down > 4) say("overlap: " + text + " | " + other.text);
      }
    });
  }
}
document.body.textContent = "BEGIN\n" + wrong.join("\n") + "\nEND " + drawings + " " + texts + ".";
"#;

/// Pixels of a sheet between its margins: upright, the narrower of A4 and Letter, and on its side,
/// the lower of the two; the other sides are at least this long.
const UPRIGHT: u32 = 702;
const SIDEWAYS: u32 = 960;
const UPRIGHT_HEIGHT: u32 = 950;

/// Minimum size of a drawing in print, as a share of its size on a screen, at which labels of 11
/// pixels are five points high.
pub(crate) const LEGIBLE: f64 = 0.6;

/// Writes the parts of each frame, whose page has the rules for print, that do not fit its sheet or
/// cannot be read.
const MEASURE_PRINT: &str = r#"
const wrong = [];
let drawings = 0;
for (const frame of document.querySelectorAll("iframe")) {
  const page = frame.contentDocument, view = frame.contentWindow, name = frame.title;
  const say = (what) => wrong.push(name + ": " + what);
  const isWide = (figure) => figure && figure.querySelector(".wide .wider");
  const isSideways = (part) => part.closest(".many") || isWide(part.closest("figure"));
  const widest = (part) => isSideways(part) ? SIDEWAYS : UPRIGHT;
  for (const table of page.querySelectorAll("table")) {
    const at = table.getBoundingClientRect();
    const text = table.innerText.slice(0, 60);
    if (at.width > widest(table) + 1) say("a table of " + at.width + ": " + text);
  }
  for (const part of page.querySelectorAll("p, h1, h2, pre, dl, figcaption")) {
    if (part.scrollWidth > UPRIGHT + 1) say("too wide: " + part.innerText.slice(0, 60));
  }
  for (const folded of page.querySelectorAll("details, nav")) {
    if (view.getComputedStyle(folded).display != "none") say("not left out: " + folded.tagName);
  }
  for (const svg of page.querySelectorAll("svg[role=img]")) {
    const box = svg.getBoundingClientRect(), size = svg.viewBox.baseVal;
    if (box.width == 0) continue;
    drawings += 1;
    // The frame is upright; on a page on its side the drawing gets wider.
    const share = Math.min(widest(svg), size.width) / size.width;
    const text = svg.textContent.slice(0, 60);
    const fits = box.width <= UPRIGHT + 1 && box.height <= HEIGHT;
    if (!fits) say("a drawing of " + box.width + " x " + box.height + ": " + text);
    if (share < SHARE) say("a drawing of " + share + " of its size: " + text);
  }
}
document.body.textContent = "BEGIN\n" + wrong.join("\n") + "\nEND " + drawings + " 0.";
"#;

/// Shows each page in a frame of each width; returns the faults, and the numbers of drawings and
/// labels inspected.
pub(crate) fn measured(pages: &[(&str, String)]) -> Option<(Vec<String>, usize, usize)> {
    framed(pages, &WIDTHS, MEASURE)
}

/// Shows each page as it is printed; returns everything that does not fit the paper or is drawn
/// smaller than this share of its size, and the number of drawings inspected.
pub(crate) fn printed(pages: &[(&str, String)], share_min: f64) -> Option<(Vec<String>, usize)> {
    // A browser applies the rules for print to no frame, so they are made rules for every medium.
    let as_print = |page: &str| {
        assert!(page.contains("@media print {"), "the page has rules for print");
        let page = page.replace("@media print {", "@media all {");
        page.replace("@media screen and", "@media speech and")
    };
    let pages: Vec<_> = pages.iter().map(|(name, page)| (*name, as_print(page))).collect();
    let measure = MEASURE_PRINT
        .replace("UPRIGHT", &UPRIGHT.to_string())
        .replace("SIDEWAYS", &SIDEWAYS.to_string())
        .replace("HEIGHT", &UPRIGHT_HEIGHT.to_string())
        .replace("SHARE", &share_min.to_string());
    framed(&pages, &[UPRIGHT], &measure).map(|(wrong, drawings, _)| (wrong, drawings))
}

fn framed(
    pages: &[(&str, String)],
    widths: &[u32],
    measure: &str,
) -> Option<(Vec<String>, usize, usize)> {
    let chromium = harness::tool("chromium")?;
    let directory = tempfile::Builder::new().prefix("pumice-").tempdir().expect("temp dir");
    let mut outer = "<!DOCTYPE html><meta charset=utf-8><title>x</title><body>".to_owned();
    for (name, page) in pages {
        let page = page.replace('&', "&amp;").replace('"', "&quot;");
        for width in widths {
            outer += &format!(
                "<iframe title=\"{name} {width}\" width=\"{width}\" height=\"800\" \
                 style=\"border:0\" srcdoc=\"{page}\"></iframe>"
            );
        }
    }
    outer += &format!("<script>onload = () => {{{measure}}};</script>");
    let file = directory.path().join("outer.html");
    fs::write(&file, outer).expect("write the page");
    let finished = harness::run_ok(
        Command::new(chromium)
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            .args(["--enable-logging=stderr", "--v=0", "--dump-dom"])
            .arg(format!("--user-data-dir={}", directory.path().join("profile").display()))
            .arg(format!("file://{}", file.display())),
    );
    let console: Vec<_> = finished.stderr.lines().filter(|line| line.contains("CONSOLE")).collect();
    assert!(console.is_empty(), "the browser complains: {console:#?}");
    let (_, found) = finished.stdout.split_once("BEGIN\n").expect("the page was measured");
    let (wrong, counts) = found.split_once("\nEND ").expect("the page was measured");
    let counts = counts.split_once('.').expect("counts").0;
    let (drawings, texts) = counts.split_once(' ').expect("two counts");
    let wrong = wrong.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect();
    Some((wrong, drawings.parse().expect("a number"), texts.parse().expect("a number")))
}

#[test]
fn a_page_is_whole_in_a_browser() {
    let pages = [
        ("benchmark", sample::document().to_html()),
        ("crowded", crowded().to_html()),
        ("hostile", hostile().to_html()),
    ];
    let Some((wrong, drawings, texts)) = measured(&pages) else { return };
    assert!(wrong.is_empty(), "{} faults:\n{}", wrong.len(), wrong.join("\n"));
    // Five, five and two charts in each of the frames.
    assert_eq!(drawings, 12 * WIDTHS.len());
    assert!(texts > 100 * WIDTHS.len(), "{texts}");
}

/// Guards against printed pages and PDF files with charts and columns cut off.
#[test]
fn a_printed_page_fits_its_paper() {
    let pages = [
        ("benchmark", sample::document().to_html()),
        ("crowded", crowded().to_html()),
        ("hostile", hostile().to_html()),
    ];
    // Thirty groups in one chart are legible on a screen only; benchmarks split them.
    let Some((wrong, drawings)) = printed(&pages, 0.3) else { return };
    assert!(wrong.is_empty(), "{} faults:\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!(drawings, 12);
    let wide = "<table><tr><td style=\"min-width:1200px\">x</table><details>x</details>";
    let page = format!("<!DOCTYPE html><title>x</title><style>@media print {{}}</style>{wide}");
    let Some((wrong, _)) = printed(&[("x", page)], LEGIBLE) else { return };
    assert_eq!(wrong.len(), 2, "{wrong:?}");
}

#[test]
fn the_measurement_detects_faults() {
    let overlap = "<svg role=img width=200 height=50><text x=9 y=20>one</text>\
                   <text x=12 y=20>two</text></svg>";
    let cut = "<svg role=img width=100 height=50><text x=90 y=20>beyond</text></svg>";
    let wide = "<div style=\"width:3000px\">x</div>";
    let flat = "<svg role=img width=100 height=0></svg>";
    for (page, fault) in [
        (overlap, "overlap: one | two"),
        (cut, "cut off: beyond"),
        (wide, "scrolls sideways"),
        (flat, "a drawing without size"),
    ] {
        let page = format!("<!DOCTYPE html><title>x</title><body>{page}");
        let Some((wrong, ..)) = measured(&[("x", page)]) else { return };
        assert!(wrong.len() >= WIDTHS.len(), "{wrong:?}");
        assert!(wrong.iter().all(|line| line.contains(fault)), "{wrong:?}");
    }
}

/// Returns a document with many series, many groups, long names, large and small numbers.
fn crowded() -> Document {
    let mut document = Document::new("A crowded report with a title that takes two lines", "");
    let section = document.section("Bars");
    for (series, groups) in [(1, 30), (9, 4), (3, 12)] {
        let names = (0..series).map(|index| format!("drive number {index} of its kind"));
        let axis = Axis::new("requests completed in a second by all clients", "1/s");
        let mut chart = BarChart::new("Crowded", "operation", axis, names);
        for group in 0..groups {
            let value = |index: usize| 1234.5 * (index + group + 1) as f64;
            let bar = |index| Number::new(value(index), 1).with_deviation(value(index) / 9.0);
            let bars = (0..series).map(|index| bar(index).into()).collect();
            chart.group(format!("mixed-read-write {group} Donaudampfschifffahrt"), bars);
        }
        section.block(chart);
    }
    let axis = || Axis::new("time since the beginning of the measurement", "s");
    let mut chart = LineChart::new("Lines", axis(), Axis::new("latency", "µs"));
    for line in 0..9 {
        let y = |x: f64| 1e6 + 1e5 * f64::from(line) + 1e4 * (x / 50.0).sin();
        let points = (0..5000).map(|x| Point::new(f64::from(x), y(f64::from(x))));
        chart.line(format!("a line with number {line}"), points.collect());
    }
    section.block(chart);
    let (x, y) = (axis().with_scale(Scale::Log), axis().with_scale(Scale::Log));
    let mut chart = LineChart::new("Decades", x, y);
    chart.line(
        "one",
        [(1e-6, 1e-9), (1.0, 1.0), (1e9, 1e12)].map(|(x, y)| Point::new(x, y)).to_vec(),
    );
    section.block(chart);
    let columns = (0..14).map(|index| Column::right(format!("column {index}")).with_unit("MB/s"));
    let columns = std::iter::once(Column::left("name")).chain(columns).collect();
    let mut table = Table::with_columns(columns).titled("A wide table");
    let cells = (0..14).map(|_| Number::new(123_456.7, 1).with_deviation(12.0).into());
    table.push(std::iter::once("a row with a rather long name".into()).chain(cells).collect());
    section.block(table);
    document
}

/// Returns a document with endless words, and markup, in every place.
fn hostile() -> Document {
    let evil = format!("<script>console.error(1)</script><img src=x>{}", "W".repeat(300));
    let evil = evil.as_str();
    let mut document = Document::new(evil, evil);
    let axis = || Axis::new(evil, evil);
    let mut bars = BarChart::new(evil, evil, axis(), [evil, evil]);
    bars.group(evil, vec![Bar::from(Number::new(1.0, 1)).labelled(evil), Bar::missing(evil)]);
    bars.group(evil, vec![Bar::missing(evil), Number::new(f64::MAX, 1).with_unit(evil).into()]);
    let mut lines = LineChart::new(evil, axis(), axis());
    let points = [(1.0, 1.0), (f64::NAN, 2.0), (3.0, f64::INFINITY), (4.0, -1.0)];
    lines.line(evil, points.map(|(x, y)| Point::new(x, y)).to_vec());
    lines.line(evil, Vec::new());
    let mut table = Table::with_columns(vec![Column::left(evil).with_unit(evil)]).titled(evil);
    table.push(vec![evil.into()]);
    let section = document.section(evil);
    section.paragraph(evil).note(evil).warning(evil).pairs([(evil, evil)]).preformatted(evil);
    section.block(bars).block(lines).block(table);
    for _ in 0..4 {
        document.section(evil);
    }
    document
}
