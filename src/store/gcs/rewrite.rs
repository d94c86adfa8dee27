//! Copies: the JSON API's rewrite, called again with its token until it is done.
//!
//! Source of the rules: the page "Objects: rewrite" of Google's JSON API reference.

use http::header::CONTENT_TYPE;
use http::{Method as HttpMethod, Request};
use object_store::client::HttpRequest;
use serde::Deserialize;

use crate::error::{Error, ErrorKind, Result};

use super::super::duplicate::{Copied, CopyOrder};
use super::super::errors;
use super::super::http::{Answer, Asking, Attempt, Wire, answered_badly, encode_part, patience};
use super::super::method::Method;
use super::super::unfinished::{Unfinished, UnfinishedLog};
use super::GcsBucket;

/// A token is good for a week. A service that keeps forgetting them is not asked forever.
const MAX_NEW_BEGINNINGS: u32 = 2;
/// A rewrite that neither ends nor moves on is stopped after this many calls. At Google's
/// smallest step of 1 MiB a call this would be a 1 TiB object.
const MAX_CALLS: u32 = 1_000_000;

impl GcsBucket {
    async fn rewrite_request(
        &self,
        from: &GcsBucket,
        order: &CopyOrder<'_>,
        token: Option<&str>,
    ) -> Result<HttpRequest> {
        let mut url = format!(
            "{}/storage/v1/b/{}/o/{}/rewriteTo/b/{}/o/{}?alt=json",
            self.endpoint,
            encode_part(&from.bucket),
            encode_part(order.source.key()),
            encode_part(&self.bucket),
            encode_part(order.destination.key()),
        );
        if order.create_only {
            url.push_str("&ifGenerationMatch=0");
        }
        // Generations are numbers; an ETag would not be a precondition of this API.
        if let Some(generation) = order
            .source_tag
            .filter(|t| t.bytes().all(|b| b.is_ascii_digit()))
        {
            url.push_str("&ifSourceGenerationMatch=");
            url.push_str(generation);
        }
        if let Some(token) = token {
            url.push_str("&rewriteToken=");
            url.push_str(&encode_part(token));
        }
        let mut request = Request::builder()
            .method(HttpMethod::POST)
            .uri(url)
            .header(CONTENT_TYPE, "application/json")
            // An empty resource: the metadata of the source is kept.
            .body("{}".to_string().into())
            .map_err(|e| Error::invalid(e.to_string()).at(order.destination))?;
        self.authorize(&mut request).await?;
        Ok(request)
    }

    /// Copies one object of `from` into this bucket. One call where location and class are equal; else
    /// as many as the service asks for, and the token that the next one needs is noted in `log`.
    pub(crate) async fn copy(
        &self,
        wire: Wire<'_>,
        from: &GcsBucket,
        order: &CopyOrder<'_>,
        log: &dyn UnfinishedLog,
    ) -> Result<Copied> {
        let mut token = log
            .find(order.destination)
            .await?
            .filter(|known| known.source_tag.as_deref() == order.source_tag)
            .and_then(|known| known.token);
        let mut noted = token.is_some();
        let mut attempts = 0;
        let mut begun_again = 0;
        for _ in 0..MAX_CALLS {
            order.cancel.check()?;
            let known = token.as_deref();
            let step = wire
                .ask(
                    Asking {
                        operation: "copy to",
                        at: order.destination,
                        patience: patience(order.size),
                    },
                    |_| self.rewrite_request(from, order, known),
                    move |answer, uncertain_before| async move {
                        match known {
                            // An old token: what was copied with it is gone.
                            Some(_) if matches!(answer.status, 400 | 404 | 410) => {
                                Attempt::Done(Step::StartAgain)
                            }
                            _ => self.judge(&answer, order, uncertain_before).await,
                        }
                    },
                )
                .await?;
            attempts += step.attempts;
            match step.value {
                Step::Done(copied) => {
                    if noted {
                        log.closed(order.destination).await?;
                    }
                    return Ok(Copied { attempts, ..copied });
                }
                Step::Continue(next) => {
                    if token.as_ref() != Some(&next) {
                        log.opened(&Unfinished {
                            destination: order.destination.clone(),
                            source_tag: order.source_tag.map(str::to_string),
                            token: Some(next.clone()),
                            part_size: 0,
                        })
                        .await?;
                        noted = true;
                    }
                    token = Some(next);
                }
                Step::StartAgain if begun_again < MAX_NEW_BEGINNINGS => {
                    begun_again += 1;
                    token = None;
                }
                Step::StartAgain => break,
            }
        }
        Err(
            Error::new(ErrorKind::Unavailable, "the rewrite does not end")
                .during("copy to")
                .at(order.destination),
        )
    }

    async fn judge(
        &self,
        answer: &Answer,
        order: &CopyOrder<'_>,
        uncertain_before: bool,
    ) -> Attempt<Step> {
        match answer.status {
            200 => match serde_json::from_slice::<RewriteResponse>(&answer.body) {
                Ok(RewriteResponse {
                    done: true,
                    resource: Some(object),
                    ..
                }) => Attempt::Done(Step::Done(Copied::new(
                    Method::GcsRewrite,
                    object.generation,
                ))),
                Ok(RewriteResponse {
                    done: false,
                    rewrite_token: Some(token),
                    ..
                }) => Attempt::Done(Step::Continue(token)),
                _ => answered_badly(answer, "copy to", order.destination),
            },
            412 => order
                .after_refusal(&self.store, Method::GcsRewrite, uncertain_before)
                .await
                .map(Step::Done),
            404 => Attempt::Failed(errors::from_answer(404, &answer.body, "copy", order.source)),
            _ => answered_badly(answer, "copy to", order.destination),
        }
    }
}

enum Step {
    Done(Copied),
    Continue(String),
    StartAgain,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RewriteResponse {
    done: bool,
    rewrite_token: Option<String>,
    resource: Option<Resource>,
}

#[derive(Deserialize)]
struct Resource {
    generation: Option<String>,
}
