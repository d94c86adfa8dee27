//! Writing a blob: whole, or as blocks that a list makes a blob under a condition.

use bytes::Bytes;
use http::header::{HeaderMap, HeaderValue, IF_NONE_MATCH};

use crate::error::Result;

use super::super::checksum::Md5Sum;
use super::super::duplicate::{Copied, CopyOrder};
use super::super::errors;
use super::super::http::{
    Answer, Asking, Attempt, Wire, answered_badly, encode_part, patience, upload_patience,
};
use super::super::location::Location;
use super::super::method::Method;
use super::super::stat::{Put, Stat};
use super::AzureContainer;

impl AzureContainer {
    /// Writes a blob in one request; the service checks its checksum.
    pub(crate) async fn put(
        &self,
        wire: Wire<'_>,
        at: &Location,
        bytes: &Bytes,
        create_only: bool,
    ) -> Result<Put> {
        let size = bytes.len() as u64;
        let sum = Md5Sum::of(bytes).await?;
        let asking = Asking {
            operation: "write",
            at,
            patience: upload_patience(size),
        };
        let outcome = wire.ask(
            asking,
            |_| async move {
                let mut request = self.upload(at.key(), "", bytes, sum)?;
                let headers = request.headers_mut();
                headers.insert("x-ms-blob-type", HeaderValue::from_static("BlockBlob"));
                if create_only {
                    headers.insert(IF_NONE_MATCH, HeaderValue::from_static("*"));
                }
                self.signed(request).await
            },
            move |answer, uncertain| async move {
                match answer.status {
                    201 => Attempt::Done(Put::Written(Stat {
                        size,
                        tag: answer.header("etag").map(str::to_string),
                        version: None,
                        ..Stat::default()
                    })),
                    409 if create_only && errors::says_blob_exists(&answer.body) => {
                        Attempt::Done(Put::Taken { uncertain })
                    }
                    _ => answered_badly(&answer, "write", at),
                }
            },
        );
        outcome.await.map(|o| o.value)
    }

    /// Writes one block of a blob to be; the service checks its checksum.
    pub(crate) async fn put_block(
        &self,
        wire: Wire<'_>,
        at: &Location,
        id: &str,
        bytes: &Bytes,
    ) -> Result<()> {
        let query = &format!("comp=block&blockid={}", encode_part(id));
        let sum = Md5Sum::of(bytes).await?;
        let outcome = wire.ask(
            Asking {
                operation: "write a block of",
                at,
                patience: upload_patience(bytes.len() as u64),
            },
            |_| async move {
                let request = self.upload(at.key(), query, bytes, sum)?;
                self.signed(request).await
            },
            move |answer, _| async move {
                match answer.status {
                    201 => Attempt::Done(()),
                    _ => answered_badly(&answer, "write a block of", at),
                }
            },
        );
        outcome.await.map(|o| o.value)
    }

    /// Makes the blob from its blocks, with these headers, under the order's condition. One request.
    pub(crate) async fn put_block_list(
        &self,
        wire: Wire<'_>,
        order: &CopyOrder<'_>,
        ids: &[String],
        properties: &HeaderMap,
        method: Method,
    ) -> Result<Copied> {
        let mut body = String::from("<?xml version=\"1.0\" encoding=\"utf-8\"?><BlockList>");
        for id in ids {
            // Base64: nothing to escape.
            body.push_str(&format!("<Uncommitted>{id}</Uncommitted>"));
        }
        body.push_str("</BlockList>");
        let body = &Bytes::from(body);
        let sum = Md5Sum::of(body).await?;
        let outcome = wire
            .ask(
                Asking {
                    operation: "complete",
                    at: order.destination,
                    patience: patience(0),
                },
                |_| async move {
                    let key = order.destination.key();
                    let mut request = self.upload(key, "comp=blocklist", body, sum)?;
                    let headers = request.headers_mut();
                    for (name, value) in properties {
                        headers.append(name.clone(), value.clone());
                    }
                    if order.create_only {
                        headers.insert(IF_NONE_MATCH, HeaderValue::from_static("*"));
                    }
                    self.signed(request).await
                },
                move |answer, uncertain_before| async move {
                    self.judge_list(&answer, order, method, uncertain_before)
                        .await
                },
            )
            .await?;
        Ok(outcome.value)
    }

    async fn judge_list(
        &self,
        answer: &Answer,
        order: &CopyOrder<'_>,
        method: Method,
        uncertain_before: bool,
    ) -> Attempt<Copied> {
        match answer.status {
            201 => Attempt::Done(Copied::new(
                method,
                answer.header("etag").map(str::to_string),
            )),
            409 | 412 => {
                order
                    .after_refusal(&self.store, method, uncertain_before)
                    .await
            }
            // The blocks are gone: an earlier list, whose answer was lost, has made the blob.
            400 if uncertain_before => {
                order
                    .after_refusal(&self.store, method, uncertain_before)
                    .await
            }
            _ => answered_badly(answer, "complete", order.destination),
        }
    }
}
