//! Goal: drawings are well-formed with any content, untrusted text stays text, and bars and error
//! bars are at the positions of their numbers.
//!
//! Method: a parser for the XML that the writer creates, strict about balance, quotes and escapes.

use super::super::{Axis, Bar, BarChart, LineChart, Number, Point, Scale, sample};
use super::*;

const FRAME: Frame<'_> = Frame { id: "chart", width: 700.0, plot_height: 200.0 };

/// Returns every start tag of well-formed XML as `name attributes`, and all text between tags.
fn read(xml: &str) -> (Vec<String>, String) {
    let (mut open, mut tags, mut text) = (Vec::new(), Vec::new(), String::new());
    let mut rest = xml;
    while let Some((before, from)) = rest.split_once('<') {
        assert!(!before.contains('>'), "a stray > in {before}");
        text += before;
        let (tag, after) = from.split_once('>').expect("a tag ends");
        assert!(!tag.contains('<') && tag.matches('"').count() % 2 == 0, "broken tag: {tag}");
        rest = after;
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name), "unbalanced in {xml}");
            continue;
        }
        let name = tag.split([' ', '/']).next().unwrap_or_default().to_owned();
        assert!(name.bytes().all(|byte| byte.is_ascii_alphabetic()), "a tag called {name}");
        if !tag.ends_with('/') {
            open.push(name);
        }
        tags.push(tag.to_owned());
    }
    assert!(open.is_empty() && rest.is_empty(), "{open:?} left open, {rest:?} left");
    (tags, text)
}

/// Returns the number in a tag's attribute.
fn number(tag: &str, attribute: &str) -> f64 {
    let (_, value) = tag.split_once(&format!(" {attribute}=\"")).expect("the attribute is there");
    value.split('"').next().unwrap_or_default().parse().expect("a number")
}

#[test]
fn bars_stand_where_their_numbers_are() {
    let mut chart = BarChart::new("T", "op", Axis::new("rate", "MB/s"), ["a"]);
    chart.group("x", vec![Number::new(80.0, 0).with_deviation(20.0).into()]);
    chart.group("y", vec![Number::new(40.0, 0).into()]);
    let drawing = bars(&chart, &FRAME);
    let (tags, text) = read(&drawing);
    let rects: Vec<_> = tags.iter().filter(|tag| tag.starts_with("rect")).collect();
    assert_eq!(rects.len(), 2);
    assert_eq!((number(rects[0], "height"), number(rects[1], "height")), (160.0, 80.0));
    assert!(number(rects[0], "x") + number(rects[0], "width") < number(rects[1], "x"));
    // From 100 to 60 on an axis from 0 to 100 over 200 pixels.
    let error = tags.iter().find(|tag| tag.contains("\"error\"")).expect("an error bar");
    let (top, bottom) = (number(rects[0], "y") - 40.0, number(rects[0], "y") + 40.0);
    assert!(error.contains(&format!(" {}V{}", Px(top), Px(bottom))), "{error}");
    assert_eq!(tags.iter().filter(|tag| tag.contains("\"error\"")).count(), 1);
    assert!(text.contains("x, a: 80 ± 20 MB/s"), "{text}");
}

#[test]
fn bars_below_zero_hang_from_it() {
    let (tags, _) = read(&bars(&sample::change(), &FRAME));
    let rects: Vec<_> = tags.iter().filter(|tag| tag.starts_with("rect")).collect();
    let floor = number(rects[0], "y") + number(rects[0], "height");
    assert!((number(rects[1], "y") - floor).abs() < 0.11, "{rects:?} {floor}");
}

#[test]
fn a_missing_bar_has_a_reason() {
    let (tags, text) = read(&bars(&sample::throughput(), &FRAME));
    assert!(text.contains("not supported") && text.contains("not measured"), "{text}");
    assert_eq!(tags.iter().filter(|tag| tag.starts_with("rect")).count(), 13);
}

#[test]
fn many_bars_get_more_room_instead_of_becoming_invisible() {
    let names: Vec<String> = (0..12).map(|index| format!("series {index}")).collect();
    let mut chart = BarChart::new("T", "op", Axis::default(), names);
    for group in 0..20 {
        chart.group(format!("group {group}"), vec![Number::new(5.0, 0).into(); 12]);
    }
    let (tags, _) = read(&bars(&chart, &FRAME));
    assert!(number(&tags[0], "width") > 1400.0);
    for tag in tags.iter().filter(|tag| tag.starts_with("rect")) {
        assert!(number(tag, "width") >= 5.0, "{tag}");
    }
}

/// Regression: a histogram of twenty bars was wider than its column, and users had to scroll to its
/// last bars, which are often the highest.
#[test]
fn a_histogram_fits_its_width() {
    let mut chart =
        BarChart::new("", "stored, %", Axis::new("share", "%"), ["data"]).as_histogram();
    for index in 0..20 {
        let name = format!("{}-{}", 5 * index, 5 * index + 5);
        chart.group(name, vec![Number::new(f64::from(index), 1).into()]);
    }
    for (width, named) in [(820.0, 10), (700.0, 10), (350.0, 7)] {
        let (tags, text) = read(&bars(&chart, &Frame { width, ..FRAME }));
        let rects: Vec<_> = tags.iter().filter(|tag| tag.starts_with("rect")).collect();
        assert_eq!(rects.len(), 20);
        let right = number(rects[19], "x") + number(rects[19], "width");
        assert!(right <= width && number(&tags[0], "width") <= width, "{right} of {width}");
        assert!(number(rects[0], "width") >= 7.0, "{}", rects[0]);
        // Each name is the tooltip of its group; the names below the bars are a second occurrence.
        let shown = (0..20).filter(|index| {
            let name = format!("{}-{}", 5 * index, 5 * index + 5);
            tags.iter().any(|tag| tag.contains("tick middle")) && text.matches(&name).count() > 2
        });
        assert!(shown.count() >= named, "{text}");
    }
}

#[test]
fn lines_have_a_path_each_and_markers_where_points_are_few() {
    let (tags, _) = read(&lines(&sample::percentiles(), &FRAME));
    assert_eq!(tags.iter().filter(|tag| tag.contains("\"line\"")).count(), 3);
    // There are eleven percentiles, but 100 is not on the axis.
    assert_eq!(tags.iter().filter(|tag| tag.contains("\"marker\"")).count(), 30);
    let (tags, _) = read(&lines(&sample::over_time(), &FRAME));
    assert_eq!(tags.iter().filter(|tag| tag.contains("\"marker\"")).count(), 0);
}

#[test]
fn dots_are_not_joined_and_have_their_deviations() {
    let mut chart = LineChart::new("T", Axis::new("saved", "%"), Axis::new("rate", "MB/s"));
    chart.line("a", vec![Point::new(0.0, 0.0), Point::new(10.0, 100.0)]);
    chart.dots(
        "b",
        vec![Point { deviation: Some(25.0), ..Point::new(5.0, 50.0) }, Point::new(7.0, 60.0)],
    );
    let (tags, _) = read(&lines(&chart, &FRAME));
    assert_eq!(tags.iter().filter(|tag| tag.contains("\"line\"")).count(), 1);
    assert_eq!(tags.iter().filter(|tag| tag.contains("\"marker\"")).count(), 4);
    let errors: Vec<_> = tags.iter().filter(|tag| tag.contains("\"error\"")).collect();
    assert_eq!(errors.len(), 1);
    // From 75 to 25 on an axis from 0 to 100 over 200 pixels.
    let (_, d) = errors[0].split_once(" d=\"M").expect("a path");
    let (high, low) = d.split_once('V').expect("it goes down");
    let (_, high) = high.split_once(' ').expect("a place");
    let low: f64 = low.split('M').next().unwrap_or_default().parse().expect("a number");
    assert_eq!(low - high.parse::<f64>().expect("a number"), 100.0, "{d}");
    let (key, _) = read(&line_key(1, &chart.series[1]));
    assert!(key.iter().all(|tag| !tag.contains("\"line\"")) && key.len() > 2, "{key:?}");
}

#[test]
fn a_second_quantity_has_its_own_axis() {
    let mut chart = LineChart::new("T", Axis::new("position", "GB"), Axis::new("rate", "MB/s"));
    chart.line("a", vec![Point::new(0.0, 100.0), Point::new(10.0, 50.0)]);
    let alone = read(&lines(&chart, &FRAME)).0;
    chart.dots_at_right("b", Axis::new("time", "ms"), vec![Point::new(5.0, 1.0)]);
    let (tags, text) = read(&lines(&chart, &FRAME));
    assert!(text.contains("time, ms") && text.contains("b: 1 ms at 5 GB"), "{text}");
    // The value 1 ms is at the top of its axis, and so is 100 MB/s on the other axis.
    let places: Vec<&str> = tags.iter().filter_map(|tag| tag.strip_prefix("path d=\"M")).collect();
    let height = |index: usize| {
        let path = places[index].split(['a', 'L', 'z']).next().expect("a place").to_owned();
        path.split_once(' ').expect("x and y").1.parse::<f64>().expect("a number")
    };
    assert_eq!(places.len(), 3, "{places:?}");
    assert!((height(0) - 30.0).abs() < 3.0 && (height(2) - 30.0).abs() < 3.0, "{places:?}");
    let ticks = |tags: &[String]| tags.iter().filter(|tag| tag.contains("\"tick\"")).count();
    assert_eq!((ticks(&alone), ticks(&tags) >= 3), (0, true));
    // The line is the same, in less space.
    let line = |tags: &[String]| tags.iter().find(|tag| tag.contains("\"line\"")).cloned();
    assert_ne!(line(&alone), line(&tags));
}

#[test]
fn text_from_outside_stays_text() {
    let evil = "<script>\"'&]]>\u{1b}";
    let mut chart = BarChart::new(evil, evil, Axis::new(evil, evil), [evil, evil, evil]);
    let bar = Bar::from(Number::new(1.0, 1).with_unit(evil)).labelled(evil);
    chart.group(evil, vec![bar, Bar::missing(evil)]);
    let mut line = LineChart::new(evil, Axis::new(evil, evil), Axis::new(evil, evil));
    line.line(evil, vec![Point::new(1.0, 2.0)]);
    for drawing in [bars(&chart, &FRAME), lines(&line, &FRAME)] {
        let (tags, text) = read(&drawing);
        assert!(!tags.iter().any(|tag| tag.starts_with("script")), "{drawing}");
        assert!(text.contains("&lt;script&gt;&quot;&#39;&amp;]]&gt;\u{fffd}"), "{text}");
    }
}

#[test]
fn extreme_numbers_give_finite_drawings() {
    let extremes =
        [0.0, -1.0, f64::MAX, f64::MIN, f64::MIN_POSITIVE, f64::NAN, f64::INFINITY, 5e-324];
    for scale in [Scale::Linear, Scale::Log, Scale::Doubling, Scale::Percentile] {
        let axis = || Axis::new("x", "").with_scale(scale);
        let mut chart = BarChart::new("T", "op", axis(), ["a"]);
        let mut line = LineChart::new("T", axis(), axis());
        for value in extremes {
            chart.group("g", vec![Number::new(value, 1).with_deviation(f64::MAX).into()]);
        }
        line.line("l", extremes.iter().flat_map(|&x| extremes.map(|y| Point::new(x, y))).collect());
        let empty = [
            bars(&BarChart::new("T", "op", axis(), Vec::<String>::new()), &FRAME),
            lines(&LineChart::new("T", axis(), axis()), &FRAME),
        ];
        for drawing in [bars(&chart, &FRAME), lines(&line, &FRAME)].iter().chain(&empty) {
            let (tags, _) = read(drawing);
            assert!(
                !tags.iter().any(|tag| tag.contains("NaN") || tag.contains("inf")),
                "{drawing}"
            );
        }
    }
}
