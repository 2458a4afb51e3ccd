//! The files of the page, embedded in the program: it loads nothing from elsewhere.

use axum::extract::Path;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};

use super::routes::failed;

/// A file of the page: name, content type, content.
type File = (&'static str, &'static str, &'static str);

const HTML: File = ("page.html", "text/html; charset=utf-8", include_str!("page/page.html"));

const FILES: [File; 4] = [
    ("page.css", "text/css; charset=utf-8", include_str!("page/page.css")),
    ("page.js", "text/javascript; charset=utf-8", include_str!("page/page.js")),
    ("chart.js", "text/javascript; charset=utf-8", include_str!("page/chart.js")),
    ("figures.js", "text/javascript; charset=utf-8", include_str!("page/figures.js")),
];

fn answer((_, content_type, content): File) -> Response {
    ([(CONTENT_TYPE, content_type)], content).into_response()
}

/// Returns the page.
pub(super) async fn html() -> Response {
    answer(HTML)
}

/// Returns a file of the page.
pub(super) async fn file(Path(name): Path<String>) -> Response {
    match FILES.into_iter().find(|file| file.0 == name) {
        Some(file) => answer(file),
        None => failed(StatusCode::NOT_FOUND, "no such path"),
    }
}
