//! Answers: JSON, problem documents, health, metrics.

use axum::body::Body;
use axum::response::Response;
use http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, StatusCode};
use serde::Serialize;

use super::super::server::BlobServer;
use super::super::wire::{Code, PROBLEM_MEDIA_TYPE, Problem};

fn with(status: StatusCode, media_type: &'static str, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    let media_type = HeaderValue::from_static(media_type);
    response.headers_mut().insert(CONTENT_TYPE, media_type);
    response
}

/// A JSON document.
pub(super) fn json(status: StatusCode, value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(bytes) => with(status, "application/json", bytes),
        Err(e) => problem(Problem::new(
            Code::Busy,
            format!("an answer cannot be written: {e}"),
        )),
    }
}

/// Done, and nothing to say.
pub(super) fn nothing() -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

/// A problem document with its headers.
pub(super) fn problem(problem: Problem) -> Response {
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let body = problem.to_json().unwrap_or_default();
    let mut response = with(status, PROBLEM_MEDIA_TYPE, body);
    let headers = response.headers_mut();
    if let Some(seconds) = problem.retry_after {
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    if problem.code == Code::Unauthorized {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

/// `/readyz`.
pub(super) async fn readiness(server: BlobServer) -> Response {
    let unready = |text: String| with(StatusCode::SERVICE_UNAVAILABLE, "text/plain", text);
    match (server.is_ready(), server.fenced(), server.trouble()) {
        (true, _, None) => with(StatusCode::OK, "text/plain", "ready\n"),
        (true, _, Some(trouble)) => unready(format!("{trouble}\n")),
        (false, Some(by), _) => unready(format!("another owner has taken over{}\n", by.at())),
        (false, None, _) => unready("ending\n".to_string()),
    }
}

/// `/metrics`.
pub(super) fn metrics(server: &BlobServer) -> Response {
    with(
        StatusCode::OK,
        "text/plain; version=0.0.4",
        server.metrics_text(),
    )
}
