//! The page's files, which are part of the program: it asks for nothing from anywhere else.

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

/// The page itself.
pub(super) async fn html() -> Response {
    answer(HTML)
}

/// What it is made of.
pub(super) async fn file(Path(name): Path<String>) -> Response {
    match FILES.into_iter().find(|file| file.0 == name) {
        Some(file) => answer(file),
        None => failed(StatusCode::NOT_FOUND, "there is nothing at this path"),
    }
}
