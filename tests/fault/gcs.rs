//! Google's JSON interface, as far as copies need it: rewrites in several calls, and listings with
//! generations.

use std::sync::Arc;
use std::time::Instant;

use percent_encoding::percent_decode_str;
use serde_json::{Value, json};

use super::call::Call;
use super::gcs_upload;
use super::log::Kind;
use super::reply::{Reply, Text, iso_date};
use super::server::{Context, Pace, not_known};
use super::state::{Bucket, Meta, Object, Rewrite, Tag};
use super::xml_list::{Start, decode_token, encode_token, page};

/// Bytes that one call moves are a multiple of this. Source: the page "Objects: rewrite".
const STEP_BYTES: u64 = 1024 * 1024;

/// The decoded segments after `/storage/v1/b`.
fn segments(call: &Call) -> Option<Vec<String>> {
    let path = call.path.strip_prefix("/upload").unwrap_or(&call.path);
    let rest = path.strip_prefix("/storage/v1/b")?;
    let decoded = rest
        .split('/')
        .skip(1)
        .map(|s| percent_decode_str(s).decode_utf8_lossy().into_owned());
    Some(decoded.collect())
}

/// Kind, bucket and key of a JSON request; `None` for one of the XML interface.
pub fn classify(call: &Call) -> Option<(Kind, String, String)> {
    let segments = segments(call)?;
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    let media = call.param("alt") == Some("media");
    let (kind, bucket, key) = match (call.method.as_str(), &segments[..]) {
        (_, [bucket, "o"]) if call.path.starts_with("/upload/") => (
            gcs_upload::classify(call),
            *bucket,
            call.param("name").unwrap_or(""),
        ),
        ("POST", [_, "o", _, "rewriteTo", "b", bucket, "o", key]) => (Kind::Rewrite, *bucket, *key),
        ("GET", [bucket, "o", key]) if media => (Kind::Get, *bucket, *key),
        ("GET", [bucket, "o", key]) => (Kind::Head, *bucket, *key),
        ("DELETE", [bucket, "o", key]) => (Kind::Delete, *bucket, *key),
        ("GET", [bucket, "o"]) => (Kind::List, *bucket, ""),
        ("GET", [bucket]) => (Kind::Bucket, *bucket, ""),
        ("POST", []) => (Kind::Bucket, "", ""),
        _ => (Kind::Other, "", ""),
    };
    Some((kind, bucket.to_string(), key.to_string()))
}

/// An error in the form of the JSON interface.
pub fn error(status: u16, reason: &str) -> Reply {
    let message = format!("{reason}, says the fault server");
    Reply::json(
        status,
        &json!({"error": {
            "code": status,
            "message": message,
            "errors": [{"domain": "global", "reason": reason, "message": message}],
        }}),
    )
}

pub async fn execute(context: &Context, kind: Kind) -> Reply {
    let (call, state) = (&context.call, context.state());
    if let Some(token) = &context.shared.known.bearer
        && call.header("authorization") != Some(&format!("Bearer {token}"))
    {
        return error(401, "authError");
    }
    let Some((_, name, key)) = classify(call) else {
        return not_known(call);
    };
    if kind == Kind::Bucket && call.is("POST") {
        let body: Value = serde_json::from_slice(&call.body).unwrap_or_default();
        let name = body["name"].as_str().unwrap_or("");
        state.create_bucket(call.service, name);
        return Reply::json(200, &json!({"kind": "storage#bucket", "name": name}));
    }
    if kind == Kind::Other {
        return not_known(call);
    }
    let Some(bucket) = state.bucket(call.service, &name) else {
        return Reply::json(
            404,
            &json!({"error": {"code": 404, "message": "The specified bucket does not exist.",
                "errors": [{"domain": "global", "reason": "notFound"}]}}),
        );
    };
    if call.path.starts_with("/upload/") {
        return gcs_upload::execute(context, kind, &name, &bucket);
    }
    let there = bucket.get(&key);
    match (kind, there) {
        (Kind::Bucket, _) => Reply::json(200, &json!({"kind": "storage#bucket", "name": name})),
        (Kind::List, _) => list(call, &name, &bucket),
        (Kind::Rewrite, _) => match rewrite(context, &name, &key, &bucket).await {
            Ok(reply) | Err(reply) => reply,
        },
        (_, None) => error(404, "notFound"),
        (Kind::Head, Some(object)) => Reply::json(200, &resource(&name, &key, &object)),
        (Kind::Get, Some(object)) => Reply::new(200)
            .with("x-goog-generation", object.generation.to_string())
            .body(Text::Object {
                range: 0..object.content.len(),
                content: Arc::clone(&object.content),
                flipped: None,
            }),
        (_, Some(object)) => {
            let mut objects = bucket.objects();
            if let Err(refused) = generation_matches(call, "ifGenerationMatch", Some(&object)) {
                return refused;
            }
            objects.remove(&key);
            Reply::new(204)
        }
    }
}

/// Does the object have the generation that the parameter demands? 0 demands that there is none.
fn generation_matches(call: &Call, name: &str, there: Option<&Object>) -> Result<(), Reply> {
    let wanted = call.param(name).map(str::to_string);
    demand(wanted.as_deref(), there)
}

pub fn demand(wanted: Option<&str>, there: Option<&Object>) -> Result<(), Reply> {
    let Some(wanted) = wanted else { return Ok(()) };
    match wanted.parse::<u64>() {
        Err(_) => Err(error(400, "invalidParameter")),
        Ok(wanted) if wanted == there.map_or(0, |o| o.generation) => Ok(()),
        Ok(_) => Err(error(412, "conditionNotMet")),
    }
}

pub fn resource(bucket: &str, key: &str, object: &Object) -> Value {
    let user: serde_json::Map<String, Value> = object
        .meta
        .headers
        .iter()
        .filter_map(|(name, value)| Some((name.strip_prefix("meta-")?.into(), json!(value))))
        .collect();
    json!({
        "kind": "storage#object",
        "bucket": bucket,
        "name": key,
        "generation": object.generation.to_string(),
        "metageneration": "1",
        "size": object.content.len().to_string(),
        "md5Hash": gcs_upload::md5_hash(&object.content),
        "etag": object.tag.to_string().trim_matches('"'),
        "contentType": object.meta.headers.get("content-type"),
        "storageClass": object.meta.class.as_deref().unwrap_or("STANDARD"),
        "updated": iso_date(object.modified),
        "metadata": user,
    })
}

fn list(call: &Call, name: &str, bucket: &Bucket) -> Reply {
    let param = |name: &str| call.param(name).unwrap_or("");
    let most = param("maxResults").parse().unwrap_or(1000).min(1000);
    let after = decode_token(param("pageToken"));
    let page = page(
        &bucket.objects(),
        param("prefix"),
        param("delimiter"),
        Start::After(&after),
        most,
    );
    let items: Vec<Value> = page
        .objects
        .iter()
        .map(|(key, object)| resource(name, key, object))
        .collect();
    let mut answer = json!({"kind": "storage#objects", "items": items});
    if !page.prefixes.is_empty() {
        answer["prefixes"] = json!(page.prefixes);
    }
    if let Some(next) = page.next {
        answer["nextPageToken"] = json!(encode_token(&next));
    }
    Reply::json(200, &answer)
}

/// One call of a rewrite. Every token stays good for the place it stands for, so that a call whose
/// answer was lost can be repeated.
async fn rewrite(
    context: &Context,
    to_bucket: &str,
    to_key: &str,
    bucket: &Arc<Bucket>,
) -> Result<Reply, Reply> {
    let (call, state) = (&context.call, context.state());
    let segments = segments(call).unwrap_or_default();
    let (from_bucket, from_key) = (segments[0].clone(), segments[2].clone());
    let pair = [
        from_bucket.clone(),
        from_key.clone(),
        to_bucket.to_string(),
        to_key.to_string(),
    ];
    let (step, lasts, ignore_destination, ignore_source) = {
        let faults = context.shared.faults();
        (
            (faults.rewrite_bytes_per_call / STEP_BYTES).max(1) * STEP_BYTES,
            faults.rewrite_token_lasts,
            faults.ignore_destination_conditions,
            faults.ignore_source_conditions,
        )
    };
    let now = state
        .bucket(call.service, &from_bucket)
        .and_then(|b| b.get(&from_key))
        .ok_or_else(|| error(404, "notFound"))?;
    if !ignore_source {
        generation_matches(call, "ifSourceGenerationMatch", Some(&now))?;
    }
    let (source, done) = match call.param("rewriteToken") {
        None => (now, 0),
        Some(token) => match state.rewrites().get(token) {
            Some(r) if r.pair != pair => return Err(error(400, "invalid")),
            // What was begun with one generation is not ended with another.
            Some(r) if r.source.generation != now.generation => {
                return Err(error(412, "conditionNotMet"));
            }
            Some(r) if r.issued.elapsed() <= lasts => (Arc::clone(&r.source), r.done),
            _ => return Err(error(410, "gone")),
        },
    };
    let wanted = call
        .param("ifGenerationMatch")
        .filter(|_| !ignore_destination)
        .map(str::to_string);
    demand(wanted.as_deref(), bucket.get(to_key).as_deref())?;
    let len = source.content.len();
    let until = done.saturating_add(step).min(len);
    let (shared, bucket) = (Arc::clone(&context.shared), Arc::clone(bucket));
    let body: Value = serde_json::from_slice(&call.body).unwrap_or_default();
    let (to_bucket, to_key) = (to_bucket.to_string(), to_key.to_string());
    let finish = move || {
        let mut answer = json!({
            "kind": "storage#rewriteResponse",
            "totalBytesRewritten": until.to_string(),
            "objectSize": len.to_string(),
            "done": until == len,
        });
        if until < len {
            let token = format!("rewrite/{}+=", shared.state.next_number());
            answer["rewriteToken"] = json!(token);
            let rewrite = Rewrite {
                pair,
                source,
                done: until,
                issued: Instant::now(),
            };
            shared.state.rewrites().insert(token, rewrite);
            return Reply::json(200, &answer);
        }
        let meta = Meta {
            class: body["storageClass"].as_str().map(str::to_string),
            ..(*source.meta).clone()
        };
        let content = Arc::clone(&source.content);
        let tag = match source.parts {
            None => source.tag,
            Some(_) => Tag::of(&content),
        };
        let object = Object::with_tag(content, tag, Arc::new(meta));
        let admit = |there: Option<&Object>| demand(wanted.as_deref(), there);
        match shared.state.put(&bucket, &to_key, object, admit) {
            Err(refused) => refused,
            Ok(object) => {
                answer["resource"] = resource(&to_bucket, &to_key, &object);
                Reply::json(200, &answer)
            }
        }
    };
    // JSON cannot begin with spaces that trickle in.
    let pace = Pace {
        trickle: None,
        ..context.pace.clone()
    };
    Ok(context.take_time_at(pace, until - done, finish).await)
}
