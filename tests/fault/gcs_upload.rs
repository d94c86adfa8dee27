//! Google's resumable uploads: a session that takes the bytes one chunk after the other.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::call::Call;
use super::content::{Content, TRUE_MD5_UP_TO_BYTES};
use super::gcs::{demand, error, resource};
use super::log::Kind;
use super::reply::Reply;
use super::server::Context;
use super::state::{Bucket, Meta, Object};

/// Chunks but the last are multiples of this. Source: the page "Resumable uploads".
const STEP_BYTES: u64 = 256 * 1024;

/// A session that has not made its object.
#[derive(Debug)]
pub struct Session {
    key: String,
    /// The generation that must be there; 0 for none.
    wanted: Option<String>,
    content: Content,
}

/// What a request to the upload path is: a status query counts as a look at parts, the last chunk as
/// the end of the upload.
pub fn classify(call: &Call) -> Kind {
    let range = call.header("content-range").unwrap_or("");
    match (call.method.as_str(), parse(range)) {
        ("POST", _) => Kind::CreateUpload,
        ("PUT", Some((Some((_, end)), total))) if end == total => Kind::CompleteUpload,
        ("PUT", Some((Some(_), _))) => Kind::PutPart,
        ("PUT", Some((None, _))) => Kind::ListParts,
        ("DELETE", _) => Kind::AbortUpload,
        _ => Kind::Other,
    }
}

/// The bytes `start..end` and the size of the object, of `bytes 0-9/10` or `bytes */10`.
fn parse(range: &str) -> Option<(Option<(u64, u64)>, u64)> {
    let (bytes, total) = range.strip_prefix("bytes ")?.split_once('/')?;
    let total = total.parse().ok()?;
    if bytes == "*" {
        return Some((None, total));
    }
    let (first, last) = bytes.split_once('-')?;
    let end = last.parse::<u64>().ok()?.checked_add(1)?;
    Some((Some((first.parse().ok()?, end)), total))
}

pub fn execute(context: &Context, kind: Kind, name: &str, bucket: &Bucket) -> Reply {
    let (call, state) = (&context.call, context.state());
    if kind == Kind::CreateUpload {
        let key = call.param("name").unwrap_or("").to_string();
        let wanted = call.param("ifGenerationMatch").map(str::to_string);
        if let Err(refused) = demand(wanted.as_deref(), bucket.get(&key).as_deref()) {
            return refused;
        }
        let id = format!("session{}", state.next_number());
        let host = call.header("host").unwrap_or("localhost");
        let location = format!(
            "http://{host}/upload/storage/v1/b/{name}/o?uploadType=resumable&name={}&upload_id={id}",
            utf8_percent_encode(&key, NON_ALPHANUMERIC)
        );
        let session = Session {
            key,
            wanted,
            content: Content::default(),
        };
        bucket.sessions().insert(id, session);
        return Reply::new(200).with("location", location);
    }
    let id = call.param("upload_id").unwrap_or("").to_string();
    if kind == Kind::AbortUpload {
        bucket.sessions().remove(&id);
        return Reply::new(499);
    }
    match take(context, &id, name, bucket) {
        Ok(reply) | Err(reply) => reply,
    }
}

fn take(context: &Context, id: &str, name: &str, bucket: &Bucket) -> Result<Reply, Reply> {
    let (call, state) = (&context.call, context.state());
    let range = call.header("content-range").unwrap_or("");
    let (bytes, total) = parse(range).ok_or_else(|| error(400, "invalid"))?;
    let mut sessions = bucket.sessions();
    let Some(session) = sessions.get_mut(id) else {
        // A session that is over tells what it made.
        let key = call.param("name").unwrap_or("");
        return match bucket.made.lock().unwrap().get(id).and(bucket.get(key)) {
            Some(object) => Ok(Reply::json(200, &resource(name, key, &object))),
            None => Err(error(404, "notFound")),
        };
    };
    if let Some((start, end)) = bytes {
        let there = session.content.len();
        let body = &call.body;
        if end - start != body.len() as u64 || start > there || end > total {
            return Err(error(400, "invalid"));
        }
        if end < total && end % STEP_BYTES != 0 {
            return Err(error(400, "invalid"));
        }
        if end > there {
            let new = body.slice((there - start) as usize..);
            session.content.append(&Content::of_bytes(new));
        }
    }
    let there = session.content.len();
    if there < total {
        let reply = Reply::new(308);
        return Ok(match there {
            0 => reply,
            n => reply.with("range", format!("bytes=0-{}", n - 1)),
        });
    }
    let Some(session) = sessions.remove(id) else {
        return Err(error(404, "notFound"));
    };
    let object = Object::new(Arc::new(session.content), Arc::new(Meta::default()));
    let admit = |there: Option<&Object>| demand(session.wanted.as_deref(), there);
    let object = state.put(bucket, &session.key, object, admit)?;
    bucket.made.lock().unwrap().insert(id.to_string());
    Ok(Reply::json(200, &resource(name, &session.key, &object)))
}

/// As it stands in an object's resource. None for objects that are too large to compute it for.
pub fn md5_hash(content: &Content) -> Option<String> {
    (content.len() <= TRUE_MD5_UP_TO_BYTES).then(|| STANDARD.encode(content.digest()))
}
