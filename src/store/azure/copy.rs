//! Copy Blob inside one account, waited for until the service says that it is done.
//!
//! A copy may be answered with `202` and status `pending`: the destination then exists with
//! length 0 and is not yet a copy. So the status is polled, the copy id is checked to be ours, and
//! a copy that failed or was aborted is an error.
//! Source of the rules: the page "Copy Blob" of the Azure REST reference.

use std::time::Duration;

use http::Method as HttpMethod;
use http::header::{HeaderValue, IF_MATCH, IF_NONE_MATCH};
use object_store::client::HttpRequest;

use crate::clock;
use crate::error::{Error, ErrorKind, Result};

use super::super::duplicate::{Copied, CopyOrder};
use super::super::errors;
use super::super::http::{Answer, Asking, Attempt, Wire, answered_badly, patience};
use super::super::method::Method;
use super::AzureContainer;

const POLL_FIRST: Duration = Duration::from_millis(100);
const POLL_CEILING: Duration = Duration::from_secs(5);

impl AzureContainer {
    async fn copy_request(
        &self,
        from: &AzureContainer,
        order: &CopyOrder<'_>,
    ) -> Result<HttpRequest> {
        let mut request = self.request(HttpMethod::PUT, order.destination.key(), "")?;
        let bad_header =
            |_| Error::invalid("a tag holds characters that no header can").at(order.source);
        let source = from.as_own_source(order.source.key()).await?;
        let headers = request.headers_mut();
        headers.insert("x-ms-copy-source", source);
        if let Some(tag) = order.source_tag {
            headers.insert(
                "x-ms-source-if-match",
                HeaderValue::from_str(tag).map_err(bad_header)?,
            );
        }
        if order.create_only {
            headers.insert(IF_NONE_MATCH, HeaderValue::from_static("*"));
        }
        self.signed(request).await
    }

    /// Copies one blob of `from` (same account) into this container. One request when the service
    /// copies at once, else one more for each look at a pending copy.
    pub(crate) async fn copy(
        &self,
        wire: Wire<'_>,
        from: &AzureContainer,
        order: &CopyOrder<'_>,
    ) -> Result<Copied> {
        let outcome = wire
            .ask(
                Asking {
                    operation: "copy to",
                    at: order.destination,
                    patience: patience(order.size),
                },
                |_| self.copy_request(from, order),
                move |answer, uncertain_before| async move {
                    self.judge(wire, from, &answer, order, uncertain_before)
                        .await
                },
            )
            .await?;
        Ok(Copied {
            attempts: outcome.attempts,
            ..outcome.value
        })
    }

    async fn judge(
        &self,
        wire: Wire<'_>,
        from: &AzureContainer,
        answer: &Answer,
        order: &CopyOrder<'_>,
        uncertain_before: bool,
    ) -> Attempt<Copied> {
        match answer.status {
            201 | 202 => {
                let tag = answer.header("etag").map(str::to_string);
                match (
                    answer.header("x-ms-copy-status"),
                    answer.header("x-ms-copy-id"),
                ) {
                    (Some("success"), _) => Attempt::Done(Copied::new(Method::AzureCopy, tag)),
                    (Some("pending"), Some(id)) => match self.wait_for(wire, order, id).await {
                        Ok(tag) => Attempt::Done(Copied::new(Method::AzureCopy, tag)),
                        Err(e) => Attempt::Failed(e),
                    },
                    _ => answered_badly(answer, "copy to", order.destination),
                }
            }
            409 | 412 => {
                // A copy whose answer was lost may be under way: the service then says 409 for that.
                if uncertain_before && let Err(e) = self.wait_for_ours(wire, from, order).await {
                    return Attempt::Failed(e);
                }
                let exists = errors::says_blob_exists(&answer.body);
                if answer.status == 409 && !exists && !uncertain_before {
                    return answered_badly(answer, "copy to", order.destination);
                }
                order
                    .after_refusal(&self.store, Method::AzureCopy, uncertain_before)
                    .await
            }
            404 => Attempt::Failed(errors::from_answer(404, &answer.body, "copy", order.source)),
            _ => answered_badly(answer, "copy to", order.destination),
        }
    }

    /// One look at the destination, and at the copy that made it or is making it.
    async fn look(&self, wire: Wire<'_>, order: &CopyOrder<'_>) -> Result<Answer> {
        self.head(wire, "wait for", order.destination).await
    }

    /// After a lost reply: if a copy from our source is under way, waits until it ends.
    async fn wait_for_ours(
        &self,
        wire: Wire<'_>,
        from: &AzureContainer,
        order: &CopyOrder<'_>,
    ) -> Result<()> {
        let looked = match self.look(wire, order).await {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            looked => looked?,
        };
        let source = from.url_of(order.source.key());
        let is_ours = looked
            .header("x-ms-copy-source")
            .is_some_and(|url| url.split('?').next() == Some(&source));
        match (
            looked.header("x-ms-copy-status"),
            looked.header("x-ms-copy-id"),
        ) {
            (Some("pending"), Some(id)) if is_ours => {
                self.wait_for(wire, order, id).await.map(|_| ())
            }
            _ => Ok(()),
        }
    }

    /// Looks at the destination until its copy `id` is no longer pending. Asked to stop, it has the
    /// service stop too.
    async fn wait_for(
        &self,
        wire: Wire<'_>,
        order: &CopyOrder<'_>,
        id: &str,
    ) -> Result<Option<String>> {
        let fail = |kind, text: String| {
            Err(Error::new(kind, text)
                .during("copy to")
                .at(order.destination))
        };
        let mut pause = POLL_FIRST;
        loop {
            tokio::select! {
                () = clock::sleep(pause) => {}
                () = order.cancel.cancelled() => {
                    self.abort(wire, order, id).await?;
                    order.cancel.check()?;
                }
            }
            pause = (pause * 2).min(POLL_CEILING);
            let looked = self.look(wire, order).await?;
            if looked.header("x-ms-copy-id") != Some(id) {
                return fail(
                    ErrorKind::Conflict,
                    "another copy was started onto the same blob".into(),
                );
            }
            match looked.header("x-ms-copy-status") {
                Some("success") => return Ok(looked.header("etag").map(str::to_string)),
                Some("pending") => {}
                status => {
                    // What is there is an empty blob of our copy, and would be in the way.
                    if let Some(tag) = looked.header("etag") {
                        self.discard(wire, order, tag).await?;
                    }
                    let why = looked
                        .header("x-ms-copy-status-description")
                        .unwrap_or("no reason given");
                    return fail(
                        ErrorKind::Unavailable,
                        format!(
                            "the service ended the copy as {}: {why}",
                            status.unwrap_or("unknown")
                        ),
                    );
                }
            }
        }
    }

    /// Ends a pending copy: the destination is then an empty blob, which is removed.
    async fn abort(&self, wire: Wire<'_>, order: &CopyOrder<'_>, id: &str) -> Result<()> {
        const DOING: &str = "abort the copy to";
        let at = order.destination;
        let outcome = wire
            .ask(
                Asking {
                    operation: DOING,
                    at,
                    patience: patience(0),
                },
                |_| async move {
                    let query = format!("comp=copy&copyid={id}");
                    let mut request = self.request(HttpMethod::PUT, at.key(), &query)?;
                    let action = HeaderValue::from_static("abort");
                    request.headers_mut().insert("x-ms-copy-action", action);
                    self.signed(request).await
                },
                move |answer, _| async move {
                    match answer.status {
                        // 409: it ended by itself meanwhile.
                        204 | 404 | 409 => Attempt::Done(answer.status == 204),
                        _ => answered_badly(&answer, DOING, at),
                    }
                },
            )
            .await?;
        if outcome.value {
            let looked = self.look(wire, order).await?;
            if let (Some(tag), Some("aborted")) =
                (looked.header("etag"), looked.header("x-ms-copy-status"))
            {
                self.discard(wire, order, tag).await?;
            }
        }
        Ok(())
    }

    /// Removes what a copy that came to nothing left, if it is still that.
    async fn discard(&self, wire: Wire<'_>, order: &CopyOrder<'_>, tag: &str) -> Result<()> {
        const DOING: &str = "remove the failed copy at";
        let at = order.destination;
        let outcome = wire.ask(
            Asking {
                operation: DOING,
                at,
                patience: patience(0),
            },
            |_| async move {
                let mut request = self.request(HttpMethod::DELETE, at.key(), "")?;
                let tag = HeaderValue::from_str(tag)
                    .map_err(|_| Error::invalid("a tag that no header can hold").at(at))?;
                request.headers_mut().insert(IF_MATCH, tag);
                self.signed(request).await
            },
            move |answer, _| async move {
                match answer.status {
                    202 | 404 | 412 => Attempt::Done(()),
                    _ => answered_badly(&answer, DOING, at),
                }
            },
        );
        outcome.await.map(|o| o.value)
    }
}
