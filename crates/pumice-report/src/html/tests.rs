//! Goal: the page is well-formed, contains every block, needs no external resources, and never
//! interprets text as markup. The tests of the built program check its appearance in a browser.
//!
//! Method: a tag parser that knows which elements have no end tag.

use std::collections::BTreeSet;

use super::super::{Align, Axis, Bar, Number, Point, sample};
use crate::chart::{BarChart, LineChart};
use crate::document::Document;
use crate::table::{Column, Table};

/// Elements without an end tag.
const VOID: [&str; 3] = ["meta", "link", "!DOCTYPE"];

/// Returns all start tags in order. Panics if elements are not balanced.
fn tags(page: &str) -> Vec<String> {
    let (mut open, mut tags) = (Vec::new(), Vec::new());
    let mut rest = page;
    while let Some((_, from)) = rest.split_once('<') {
        let (tag, after) = from.split_once('>').expect("a tag ends");
        rest = after;
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap_or_default();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "unbalanced before {rest:.200}");
            continue;
        }
        tags.push(tag.to_owned());
        if name == "style" {
            rest = rest.split_once("</style>").expect("the style ends").1;
        } else if !tag.ends_with('/') && !VOID.contains(&name) {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "left open: {open:?}");
    tags
}

#[test]
fn every_block_is_there() {
    let page = sample::document().to_html();
    let tags = tags(&page);
    for expected in sample::EXPECTED {
        assert!(page.contains(expected), "no {expected:?}");
    }
    let count = |start: &str| tags.iter().filter(|tag| tag.starts_with(start)).count();
    assert_eq!((count("h1"), count("h2"), count("section"), count("nav")), (1, 5, 5, 1));
    assert_eq!((count("figure"), count("dl"), count("pre")), (5, 1, 1));
    assert_eq!((count("table"), count("caption")), (6, 1));
    assert!(count("th scope=\"col\"") > 10 && count("th scope=\"row\"") > 10);
    assert_eq!(tags.iter().filter(|tag| tag.contains("role=\"img\"")).count(), 10);
    assert!(page.contains("<p class=\"note warning\" role=\"note\"><strong>Warning</strong>"));
    assert!(page.contains("min-width:6ch\">± 20.3</span>"), "deviations line up");
}

#[test]
fn ids_are_unique_and_links_lead_to_them() {
    let mut document = sample::document();
    for heading in ["Latency", "Latency", "Latency 0", "漢字", "", "0"] {
        document.section(heading).block(sample::change());
    }
    let page = document.to_html();
    let values = |attribute: &str| -> Vec<String> {
        let parts = page.split(attribute).skip(1);
        parts.map(|part| part.split('"').next().unwrap_or_default().to_owned()).collect()
    };
    let ids = values(" id=\"");
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len(), "{ids:?}");
    let mut named = values("href=\"#");
    named.extend(
        values("aria-labelledby=\"")
            .iter()
            .flat_map(|names| names.split(' ').map(str::to_owned).collect::<Vec<_>>()),
    );
    assert!(named.len() > 20);
    for name in named {
        assert!(ids.contains(&name), "nothing is called {name}");
    }
}

#[test]
fn short_documents_have_no_contents() {
    let mut document = sample::document();
    document.sections.truncate(3);
    assert!(!tags(&document.to_html()).iter().any(|tag| tag.starts_with("nav")));
}

#[test]
fn text_from_outside_stays_text() {
    let evil = "<script>alert(\"'\")</script>&amp;\u{1b}";
    let mut document = Document::new(evil, evil);
    let mut table =
        Table::with_columns(vec![Column::left(evil).with_unit(evil), Column::right("")]);
    table.push(vec![evil.into(), Number::new(1.0, 1).with_unit(evil).with_deviation(2.0).into()]);
    let axis = || Axis::new(evil, evil);
    let mut bars = BarChart::new(evil, evil, axis(), [evil, evil]);
    bars.group(evil, vec![Bar::from(Number::new(1.0, 0).with_unit(evil)).labelled(evil)]);
    bars.group(evil, vec![Bar::missing(evil)]);
    let mut lines = LineChart::new(evil, axis(), axis());
    lines.line(evil, vec![Point::new(1.0, 1.0)]);
    lines.line(evil, Vec::new());
    document.section(evil).paragraph(evil).note(evil).warning(evil).pairs([(evil, evil)]);
    document.section(evil).preformatted(evil).block(table.titled(evil)).block(bars).block(lines);
    document.section(evil);
    document.section(evil);
    let page = document.to_html();
    assert!(!tags(&page).iter().any(|tag| tag.starts_with("script")));
    assert!(!page.to_lowercase().contains("<script") && !page.contains('\u{1b}'));
    assert!(page.matches("&lt;script&gt;").count() + page.matches("&#60;script&#62;").count() > 30);
}

#[test]
fn the_page_needs_nothing_from_outside() {
    let page = sample::document().to_html();
    for word in ["http://", "https://", "url(", "@import", " src=", "<script"] {
        assert!(!page.contains(word), "{word}");
    }
    assert!(page.contains("default-src 'none'"));
    assert_eq!(page, sample::document().to_html());
}

#[test]
fn a_table_without_a_header_has_none() {
    let mut document = Document::new("", "");
    let mut table = Table::new(&[("", Align::Left)]);
    table.row(vec!["x".into()]);
    document.section("").block(table);
    let tags = tags(&document.to_html());
    assert!(!tags.iter().any(|tag| tag == "thead" || tag == "caption"));
}

/// Returns the relative luminance of `#rgb` or `#rrggbb`.
///
/// Source: WCAG 2.2, "relative luminance".
fn luminance(colour: &str) -> f64 {
    let digits: Vec<_> = colour.trim_start_matches('#').chars().collect();
    let twice = if digits.len() == 3 { 1 } else { 2 };
    let channel = |index: usize| {
        let text: String = digits[index * twice..][..twice].iter().collect();
        let value = f64::from(u32::from_str_radix(&text, 16).expect("hexadecimal digits"));
        let value = value / if twice == 1 { 15.0 } else { 255.0 };
        if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
    };
    0.2126 * channel(0) + 0.7152 * channel(1) + 0.0722 * channel(2)
}

#[test]
fn text_has_enough_contrast_in_light_and_dark() {
    let css = include_str!("page.css");
    let schemes: Vec<_> = css.split(":root {").skip(1).collect();
    assert_eq!(schemes.len(), 2);
    for scheme in schemes {
        let colour = |name: &str| {
            let (_, rest) = scheme.split_once(&format!("--{name}: ")).expect("a colour");
            luminance(rest.split(';').next().expect("a value"))
        };
        let contrast = |a: f64, b: f64| (a.max(b) + 0.05) / (a.min(b) + 0.05);
        for (text, ground, least) in [
            ("ink", "paper", 7.0),
            ("ink", "sheet", 7.0),
            ("ink", "warn-sheet", 7.0),
            ("muted", "paper", 4.5),
            ("link", "paper", 4.5),
            ("warn", "warn-sheet", 4.5),
            ("floor", "paper", 3.0),
        ] {
            let found = contrast(colour(text), colour(ground));
            assert!(found >= least, "{text} on {ground}: {found:.2}");
        }
        for series in 0..7 {
            let found = contrast(colour(&format!("c{series}")), colour("paper"));
            assert!(found >= 2.0, "c{series}: {found:.2}");
        }
    }
}
