//! Answers: statuses, headers, and bodies that are made while they are sent.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures::stream::{self, StreamExt};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::Response;
use hyper::body::Frame;
use tokio::task::JoinHandle;

use super::content::Content;

pub type Body = UnsyncBoxBody<Bytes, io::Error>;

/// Bytes that are generated at once.
const CHUNK_BYTES: u64 = 256 * 1024;

/// What is answered.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    headers: Vec<(String, String)>,
    pub body: Text,
}

/// The body of an answer.
#[derive(Debug)]
pub enum Text {
    Bytes(Bytes),
    /// Bytes of an object; at the position, if any, one byte is wrong.
    Object {
        content: Arc<Content>,
        range: Range<u64>,
        flipped: Option<u64>,
    },
    /// No body, for an object of this length.
    Head(u64),
    /// A space now and then, until the answer proper is there.
    Trickle {
        every: Duration,
        answer: JoinHandle<Reply>,
    },
}

impl Reply {
    pub fn new(status: u16) -> Reply {
        Reply {
            status,
            headers: Vec::new(),
            body: Text::Bytes(Bytes::new()),
        }
    }

    pub fn xml(status: u16, text: impl AsRef<str>) -> Reply {
        let text = format!("{XML_HEAD}{}", text.as_ref());
        Reply::new(status)
            .with("content-type", "application/xml")
            .body(Text::Bytes(text.into()))
    }

    pub fn json(status: u16, value: &serde_json::Value) -> Reply {
        Reply::new(status)
            .with("content-type", "application/json; charset=UTF-8")
            .body(Text::Bytes(value.to_string().into()))
    }

    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<String>) -> Reply {
        self.headers.push((name.to_string(), value.into()));
        self
    }

    #[must_use]
    pub fn body(mut self, body: Text) -> Reply {
        self.body = body;
        self
    }

    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The answer for hyper; with `cut`, the connection breaks after that many bytes of the body.
    pub fn into_response(self, cut: Option<u64>, head: bool) -> Response<Body> {
        let mut response = Response::builder().status(self.status);
        for (name, value) in &self.headers {
            response = response.header(name, value);
        }
        let body = match self.body {
            Text::Bytes(bytes) => {
                if !head || !bytes.is_empty() {
                    response = response.header("content-length", bytes.len());
                }
                match cut {
                    // Statuses without a body are what HEAD and DELETE give: nothing to cut.
                    _ if head || self.status == 204 => whole(Bytes::new()),
                    None => whole(bytes),
                    Some(after) => {
                        let end = (after as usize).min(bytes.len());
                        broken(stream::iter([Ok(bytes.slice(..end))]).boxed())
                    }
                }
            }
            Text::Object {
                content,
                range,
                flipped,
            } => {
                response = response.header("content-length", range.end - range.start);
                let end = cut.map_or(range.end, |c| range.end.min(range.start + c));
                let chunks = object_chunks(content, range.start..end, flipped);
                match cut {
                    None => streamed(chunks),
                    Some(_) => broken(chunks),
                }
            }
            Text::Head(len) => {
                response = response.header("content-length", len);
                whole(Bytes::new())
            }
            Text::Trickle { every, answer } => streamed(trickle(every, answer).boxed()),
        };
        response.body(body).unwrap_or_else(|e| {
            let text = format!("the fault server made a bad header: {e}");
            let mut response = Response::new(whole(text.into()));
            *response.status_mut() = hyper::StatusCode::NOT_IMPLEMENTED;
            response
        })
    }
}

type Chunks = stream::BoxStream<'static, io::Result<Bytes>>;

fn whole(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|e| match e {}).boxed_unsync()
}

fn streamed(chunks: Chunks) -> Body {
    StreamBody::new(chunks.map(|c| c.map(Frame::data))).boxed_unsync()
}

fn broken(chunks: Chunks) -> Body {
    let end = async {
        // What came before the cut shall get out first.
        tokio::time::sleep(Duration::from_millis(20)).await;
        Err(io::Error::from(io::ErrorKind::ConnectionReset))
    };
    streamed(chunks.chain(stream::once(end)).boxed())
}

fn object_chunks(content: Arc<Content>, range: Range<u64>, flipped: Option<u64>) -> Chunks {
    stream::unfold(range.start, move |at| {
        let content = Arc::clone(&content);
        async move {
            let end = (at + CHUNK_BYTES).min(range.end);
            if at >= end {
                return None;
            }
            let mut bytes = content.read(at..end);
            if let Some(flip) = flipped.filter(|f| (at..end).contains(f)) {
                let mut changed = bytes.to_vec();
                changed[(flip - at) as usize] ^= 0x01;
                bytes = changed.into();
            }
            Some((Ok(bytes), end))
        }
    })
    .boxed()
}

fn trickle(
    every: Duration,
    answer: JoinHandle<Reply>,
) -> impl stream::Stream<Item = io::Result<Bytes>> + Send {
    let head = stream::once(async { Ok(Bytes::from_static(XML_HEAD.as_bytes())) });
    head.chain(stream::unfold(Some(answer), move |answer| async move {
        let mut answer = answer?;
        match tokio::time::timeout(every, &mut answer).await {
            Err(_) => Some((Ok(Bytes::from_static(b" ")), Some(answer))),
            Ok(Ok(Reply {
                body: Text::Bytes(bytes),
                ..
            })) => {
                let bytes = bytes.slice(XML_HEAD.len().min(bytes.len())..);
                Some((Ok(bytes), None))
            }
            Ok(_) => Some((Err(io::Error::other("no answer")), None)),
        }
    }))
}

const XML_HEAD: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";

/// Text as it may stand in an XML element. Characters that XML cannot hold become references, as
/// S3 writes them.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\r' | '\n' | '\t' => out.push_str(&format!("&#{};", c as u32)),
            c => out.push(c),
        }
    }
    out
}

fn civil(seconds: u64) -> (i64, usize, u64, u64, u64, u64, usize) {
    let days = (seconds / 86_400) as i64;
    // Howard Hinnant's days-to-date, for years that begin in March.
    let z = days + 719_468;
    let era = z / 146_097;
    let of_era = z % 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let mp = (5 * of_year + 2) / 153;
    let day = (of_year - (153 * mp + 2) / 5 + 1) as u64;
    let month = if mp < 10 { mp + 3 } else { mp - 9 } as usize;
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let of_day = seconds % 86_400;
    let weekday = ((days + 4) % 7) as usize;
    (
        year,
        month,
        day,
        of_day / 3600,
        of_day % 3600 / 60,
        of_day % 60,
        weekday,
    )
}

/// `2026-01-31T10:20:30.000Z`
pub fn iso_date(seconds: u64) -> String {
    let (year, month, day, h, m, s, _) = civil(seconds);
    format!("{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}.000Z")
}

/// `Sat, 31 Jan 2026 10:20:30 GMT`
pub fn http_date(seconds: u64) -> String {
    const DAYS: [&str; 7] = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let (year, month, day, h, m, s, weekday) = civil(seconds);
    let (weekday, month) = (DAYS[weekday], MONTHS[month - 1]);
    format!("{weekday}, {day:02} {month} {year:04} {h:02}:{m:02}:{s:02} GMT")
}

pub fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_secs())
}
