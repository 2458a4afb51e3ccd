//! The files of the page, embedded in the program: it loads nothing from elsewhere.

use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};

/// A file of the page.
#[derive(Clone, Copy)]
struct File {
    name: &'static str,
    content_type: &'static str,
    content: &'static str,
}

const CSS: &str = "text/css; charset=utf-8";
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

const HTML: File = File {
    name: "page.html",
    content_type: "text/html; charset=utf-8",
    content: include_str!("page.html"),
};

const FILES: [File; 6] = [
    File { name: "page.css", content_type: CSS, content: include_str!("page.css") },
    File { name: "page.js", content_type: JAVASCRIPT, content: include_str!("page.js") },
    File { name: "chart.js", content_type: JAVASCRIPT, content: include_str!("chart.js") },
    File { name: "drives.js", content_type: JAVASCRIPT, content: include_str!("drives.js") },
    File { name: "figures.js", content_type: JAVASCRIPT, content: include_str!("figures.js") },
    File { name: "past.js", content_type: JAVASCRIPT, content: include_str!("past.js") },
];

fn answer(file: File) -> Response {
    ([(CONTENT_TYPE, file.content_type)], file.content).into_response()
}

/// Returns the page.
pub(super) async fn html() -> Response {
    answer(HTML)
}

/// Returns a file of the page, if there is one with this name.
pub(super) fn file(name: &str) -> Option<Response> {
    FILES.into_iter().find(|file| file.name == name).map(answer)
}
