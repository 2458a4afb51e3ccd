//! Paths, and the common parts of every answer.
//!
//! | path | answer |
//! |---|---|
//! | `/` | the page, with `/page.css` and its scripts |
//! | `/metrics` | metrics for Prometheus |
//! | `/healthz` | 200, or 503 with the reason; without the token only the status |
//! | `/api/snapshot` | everything, as the page uses it |
//! | `/api/drives` | the drives' names |
//! | `/api/drives/NAME` | the output of `pumice info --json`, without the snapshots |
//! | `/api/drives/NAME/segments?cells=N` | the segments as a map |
//! | `/api/drives/NAME/snapshots` | the snapshots, and the space that each retains |
//! | `/api/drives/NAME/history` | the last hour, a point every five seconds |
//! | POST `/api/drives/NAME/flush`, `/checkpoint` | with the token |

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, Query, Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName,
    HeaderValue, REFERRER_POLICY, TRANSFER_ENCODING, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::access::Access;
use super::ask::{Asker, Unanswered};
use super::history::History;
use super::{metrics, page};
use crate::watch::{Action, DriveSnapshot, Snapshot};

/// Time limit for an answer. Actions take longest.
const ANSWER_MAX: Duration = Duration::from_secs(35);

/// Maximum bytes of a request body: no path reads one.
const BODY_BYTES_MAX: u64 = 4096;

/// The reason why a drive is not shown.
const SILENT: &str = "the drives' thread does not answer in time";

/// The path for probes.
const HEALTH: &str = "/healthz";

/// Cells of a map of segments: the maximum, and the default.
const CELLS_MAX: u32 = 4096;
const CELLS_DEFAULT: u32 = 1024;

/// Only resources of this server, and no inline scripts or styles.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; \
    frame-ancestors 'none'";

/// Returns all paths, with the access rules.
pub(super) fn router(asker: Asker, history: History, access: Access) -> Router {
    let past = move |Path(name): Path<String>| {
        let points = history.points(&name);
        async move { points.map_or_else(|| no_drive(&name), |points| Json(points).into_response()) }
    };
    Router::new()
        .route("/", get(page::html))
        .route("/{file}", get(file))
        .route("/metrics", get(metrics))
        .route(HEALTH, get(health))
        .route("/api/snapshot", get(snapshot))
        .route("/api/drives", get(drives))
        .route("/api/drives/{name}", get(drive))
        .route("/api/drives/{name}/segments", get(segments))
        .route("/api/drives/{name}/snapshots", get(kept))
        .route("/api/drives/{name}/history", get(past))
        .route("/api/drives/{name}/flush", post(flush))
        .route("/api/drives/{name}/checkpoint", post(checkpoint))
        .fallback(async || no_path())
        .method_not_allowed_fallback(async || {
            failed(StatusCode::METHOD_NOT_ALLOWED, "method not allowed for this path")
        })
        .layer(from_fn_with_state(Arc::new(access), guard))
        .with_state(asker)
}

/// Applies the access rules, and adds security headers to every answer.
async fn guard(State(access): State<Arc<Access>>, request: Request, next: Next) -> Response {
    let checked = access.check(request.method(), request.headers());
    let is_refused = checked.is_err();
    let mut response = match checked {
        // Health probes of load balancers have no token.
        Err(refusal)
            if refusal.status == StatusCode::UNAUTHORIZED && request.uri().path() == HEALTH =>
        {
            let answered = tokio::time::timeout(ANSWER_MAX, next.run(request)).await;
            let status = answered.map_or(StatusCode::SERVICE_UNAVAILABLE, |got| got.status());
            let word = if status.is_success() { "ok" } else { "failing" };
            (status, Json(json!({ "status": word }))).into_response()
        }
        Err(refusal) => failed(refusal.status, refusal.what),
        Ok(()) if has_long_body(request.headers()) => {
            failed(StatusCode::PAYLOAD_TOO_LARGE, "request body too long")
        }
        Ok(()) => match tokio::time::timeout(ANSWER_MAX, next.run(request)).await {
            Ok(response) => response,
            Err(_) => unanswered(Unanswered),
        },
    };
    let is_unauthorized = response.status() == StatusCode::UNAUTHORIZED;
    let headers = response.headers_mut();
    for (name, value) in [
        (CACHE_CONTROL, "no-store"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (REFERRER_POLICY, "no-referrer"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    // A refused client does not occupy one of the few connections.
    if is_refused {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    if is_unauthorized {
        let ask = HeaderValue::from_static("Basic realm=\"pumice\", charset=\"UTF-8\"");
        headers.insert(WWW_AUTHENTICATE, ask);
    }
    response
}

fn has_long_body(headers: &HeaderMap) -> bool {
    let length = headers.get(CONTENT_LENGTH).map(|length| length.to_str().unwrap_or_default());
    let length = length.map(|length| length.parse().unwrap_or(u64::MAX));
    headers.contains_key(TRANSFER_ENCODING) || length.is_some_and(|length| length > BODY_BYTES_MAX)
}

/// Returns an error answer.
fn failed(status: StatusCode, what: &str) -> Response {
    (status, Json(json!({ "error": what }))).into_response()
}

fn unanswered(_: Unanswered) -> Response {
    failed(StatusCode::SERVICE_UNAVAILABLE, SILENT)
}

fn no_path() -> Response {
    failed(StatusCode::NOT_FOUND, "no such path")
}

fn no_drive(name: &str) -> Response {
    let what = format!("no such drive: '{name}'; /api/drives lists the drives");
    failed(StatusCode::NOT_FOUND, &what)
}

async fn file(Path(name): Path<String>) -> Response {
    page::file(&name).unwrap_or_else(no_path)
}

async fn metrics(State(asker): State<Asker>) -> Response {
    let snapshot = match asker.snapshot().await {
        Ok(snapshot) => snapshot,
        Err(error) => return unanswered(error),
    };
    let mut response = Body::from(metrics::exposition(snapshot)).into_response();
    let content_type = HeaderValue::from_static(metrics::CONTENT_TYPE);
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

async fn health(State(asker): State<Asker>) -> Response {
    let snapshot = match asker.snapshot().await {
        Ok(snapshot) => snapshot,
        Err(_) => {
            let body = json!({ "status": "failing", "what": SILENT, "drives": [] });
            return (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response();
        }
    };
    let is_failing =
        |drive: &DriveSnapshot| drive.overview.alerts.iter().any(|alert| alert.refuses_writes);
    let word = |is_failing| if is_failing { "failing" } else { "ok" };
    let mut drives: Vec<_> = snapshot
        .drives
        .iter()
        .map(|drive| {
            let alerts = &drive.overview.alerts;
            json!({ "name": drive.name, "status": word(is_failing(drive)), "alerts": alerts })
        })
        .collect();
    let answering = drives.len();
    let silent = |name| json!({ "name": name, "status": "failing", "what": SILENT, "alerts": [] });
    drives.extend(asker.missing(&snapshot).into_iter().map(silent));
    let any = drives.len() > answering || snapshot.drives.iter().any(is_failing);
    let status = if any { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    (status, Json(json!({ "status": word(any), "drives": drives }))).into_response()
}

async fn snapshot(State(asker): State<Asker>) -> Response {
    let snapshot = match asker.snapshot().await {
        Ok(snapshot) => snapshot,
        Err(error) => return unanswered(error),
    };
    let silent = asker.missing(&snapshot);
    Json(Everything { snapshot: &snapshot, silent }).into_response()
}

/// The data of the page.
#[derive(Serialize)]
struct Everything<'a> {
    #[serde(flatten)]
    snapshot: &'a Snapshot,
    /// The drives whose thread does not answer.
    silent: Vec<String>,
}

async fn drives(State(asker): State<Asker>) -> Response {
    let snapshot = match asker.snapshot().await {
        Ok(snapshot) => snapshot,
        Err(error) => return unanswered(error),
    };
    let drives: Vec<_> = snapshot
        .drives
        .iter()
        .map(|drive| {
            let info = &drive.info;
            json!({ "name": drive.name, "uuid": info.uuid, "size_bytes": info.size_bytes })
        })
        .collect();
    Json(drives).into_response()
}

async fn drive(State(asker): State<Asker>, Path(name): Path<String>) -> Response {
    let snapshot = match asker.snapshot().await {
        Ok(snapshot) => snapshot,
        Err(error) => return unanswered(error),
    };
    let drive = snapshot.drives.into_iter().find(|drive| drive.name == name);
    drive.map_or_else(|| no_drive(&name), |drive| Json(drive.info).into_response())
}

/// Number of cells of the map.
#[derive(Deserialize)]
struct MapQuery {
    cells: Option<u32>,
}

async fn segments(
    State(asker): State<Asker>,
    Path(name): Path<String>,
    query: Result<Query<MapQuery>, axum::extract::rejection::QueryRejection>,
) -> Response {
    let cells = match query {
        Ok(Query(MapQuery { cells })) => cells.unwrap_or(CELLS_DEFAULT),
        Err(_) => 0,
    };
    if !(1..=CELLS_MAX).contains(&cells) {
        let what = format!("invalid value for cells: expected a number from 1 to {CELLS_MAX}");
        return failed(StatusCode::BAD_REQUEST, &what);
    }
    match asker.segments(name.clone(), cells).await {
        Ok(Some(map)) => Json(map).into_response(),
        Ok(None) => no_drive(&name),
        Err(error) => unanswered(error),
    }
}

async fn kept(State(asker): State<Asker>, Path(name): Path<String>) -> Response {
    match asker.snapshots(name.clone()).await {
        Ok(Some(listed)) => Json(&*listed).into_response(),
        Ok(None) => no_drive(&name),
        Err(error) => unanswered(error),
    }
}

async fn flush(State(asker): State<Asker>, Path(name): Path<String>) -> Response {
    act(asker, name, Action::Flush).await
}

async fn checkpoint(State(asker): State<Asker>, Path(name): Path<String>) -> Response {
    act(asker, name, Action::Checkpoint).await
}

async fn act(asker: Asker, name: String, action: Action) -> Response {
    tracing::info!(drive = %name, ?action, "action requested over HTTP");
    match asker.act(name.clone(), action).await {
        Ok(Some(Ok(()))) => Json(json!({ "done": action })).into_response(),
        Ok(Some(Err(error))) => failed(StatusCode::CONFLICT, &error.chain()),
        Ok(None) => no_drive(&name),
        Err(error) => unanswered(error),
    }
}
