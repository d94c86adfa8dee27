//! Batches of uploads: begin, send what is missing, commit. All members become visible, or none.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use bytes::{Bytes, BytesMut};
use futures::{StreamExt, TryStreamExt, stream};
use http::{HeaderMap, HeaderValue, header};

use crate::clock;
use crate::error::{Error, ErrorKind, Result};
use crate::store::of_file;

use super::super::key::{Digest, DisplayName, JobId, SessionId};
use super::super::lifecycle::{Class, JobState};
use super::super::uploads::Staged;
use super::super::wire::{
    BeginUpload, Call, Code, MemberArrived, PlannedMember, UploadBegun, UploadCommitted,
};
use super::transport::{Failure, Movement, Sending};
use super::{BlobClient, json};

/// Files are read in pieces of this size.
const PIECE_BYTES: usize = 1 << 20;
/// Pieces of memory are handed over in slices of this size, so that progress is seen.
const SLICE_BYTES: usize = 256 << 10;
/// Members of a batch under way at once.
const MEMBERS_AT_ONCE: usize = 4;
/// How often a batch is gone through when the server has lost members meanwhile.
const ROUNDS: u32 = 3;

/// Where the bytes of an upload are. They can be sent again, so that a broken upload is repeated.
#[derive(Debug, Clone)]
pub enum Content {
    /// In memory.
    Bytes(Bytes),
    /// In a file, which must not change meanwhile.
    File(PathBuf),
}

/// One member of a batch.
#[derive(Debug, Clone)]
pub struct Upload {
    /// The name people know it by.
    pub name: Option<DisplayName>,
    /// Whether it must survive the server.
    pub class: Class,
    /// The bytes.
    pub content: Content,
}

/// What an upload came to.
#[derive(Debug, Clone)]
pub struct UploadReport {
    /// The digests, in the order of the uploads.
    pub digests: Vec<Digest>,
    /// Those that were sent; the others were there.
    pub sent: BTreeSet<Digest>,
    /// The server's answer.
    pub staged: Staged,
    /// Where the job stands, if the server said so.
    pub state: Option<JobState>,
    /// Members that somebody holds.
    pub held: BTreeSet<Digest>,
}

impl Content {
    /// The digest; a file is read once, off the async threads.
    ///
    /// # Errors
    ///
    /// If the file cannot be read.
    pub async fn digest(&self) -> Result<Digest> {
        match self {
            Content::Bytes(bytes) if bytes.len() <= SLICE_BYTES => Ok(Digest::of(bytes)),
            Content::Bytes(bytes) => {
                let bytes = bytes.clone();
                crate::store::blocking(move || Ok(Digest::of(&bytes))).await
            }
            Content::File(path) => {
                let path = path.clone();
                crate::store::blocking(move || {
                    let fail = |e| of_file(e, &path);
                    let file = std::fs::File::open(&path).map_err(fail)?;
                    if !file.metadata().map_err(fail)?.is_file() {
                        return Err(Error::invalid("it is no file")
                            .during("read")
                            .at(path.display()));
                    }
                    Digest::read(file).map_err(fail)
                })
                .await
            }
        }
    }

    /// The bytes as a request's body of exactly `size` bytes. What goes wrong here lands in `broken`: it
    /// is not the connection's fault.
    fn body(&self, size: u64, movement: &Movement, broken: &Arc<OnceLock<Error>>) -> reqwest::Body {
        let movement = movement.clone();
        if size == 0 {
            return Bytes::new().into();
        }
        match self {
            Content::Bytes(bytes) => {
                let rest = bytes.clone();
                let pieces = stream::unfold(rest, move |mut rest| {
                    let piece = rest.split_to(rest.len().min(SLICE_BYTES));
                    match rest.is_empty() {
                        true => movement.all_out(size),
                        false => movement.moved(),
                    }
                    let some = !piece.is_empty();
                    async move { some.then_some((Ok::<_, std::io::Error>(piece), rest)) }
                });
                reqwest::Body::wrap_stream(pieces)
            }
            Content::File(path) => {
                let (path, broken) = (path.clone(), Arc::clone(broken));
                let pieces = stream::unfold((None, size), move |(file, left)| {
                    let (path, broken, movement) =
                        (path.clone(), Arc::clone(&broken), movement.clone());
                    async move {
                        if left == 0 {
                            return None;
                        }
                        let read =
                            crate::store::blocking(move || next_piece(&path, file, left)).await;
                        match read {
                            Ok((file, piece)) => {
                                let left = left.saturating_sub(piece.len() as u64);
                                match left {
                                    0 => movement.all_out(size),
                                    _ => movement.moved(),
                                }
                                Some((Ok(piece), (Some(file), left)))
                            }
                            Err(e) => {
                                let text = e.to_string();
                                let _ = broken.set(e);
                                Some((Err(std::io::Error::other(text)), (None, 0)))
                            }
                        }
                    }
                });
                reqwest::Body::wrap_stream(pieces)
            }
        }
    }
}

fn next_piece(
    path: &std::path::Path,
    file: Option<std::fs::File>,
    left: u64,
) -> Result<(std::fs::File, Bytes)> {
    let fail = |e| of_file(e, path);
    let mut file = match file {
        Some(file) => file,
        None => std::fs::File::open(path).map_err(fail)?,
    };
    let length = usize::try_from(left)
        .unwrap_or(PIECE_BYTES)
        .min(PIECE_BYTES);
    let mut piece = BytesMut::zeroed(length);
    file.read_exact(&mut piece).map_err(|e| match e.kind() {
        std::io::ErrorKind::UnexpectedEof => Error::new(
            ErrorKind::Conflict,
            "the file became shorter while it was sent",
        )
        .during("read")
        .at(path.display()),
        _ => fail(e),
    })?;
    Ok((file, piece.freeze()))
}

/// A batch under way. Dropped without a commit it lapses by itself (`blob.upload.idle-ttl`).
#[derive(Debug)]
pub struct UploadSession {
    client: BlobClient,
    job: JobId,
    id: SessionId,
    missing: BTreeSet<Digest>,
}

impl UploadSession {
    /// What must be sent.
    pub fn missing(&self) -> &BTreeSet<Digest> {
        &self.missing
    }

    /// The batch's id.
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// Sends one member; repeated when the connection breaks. One request, and one more for each
    /// repetition.
    ///
    /// # Errors
    ///
    /// `Corrupt` if the bytes have another digest; `Conflict` if the session has ended or the file
    /// changed; `Refused` for what is too large or over the quota.
    pub async fn put(&mut self, digest: &Digest, content: &Content) -> Result<()> {
        self.send(digest, content)
            .await
            .map_err(Failure::into_error)?;
        self.missing.remove(digest);
        Ok(())
    }

    async fn send(&self, digest: &Digest, content: &Content) -> Result<(), Failure> {
        let call = Call::SendMember {
            job: self.job.clone(),
            session: self.id,
            digest: Some(*digest),
        };
        let mut failed = 0;
        loop {
            let movement = Movement::new();
            let broken = Arc::new(OnceLock::new());
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_LENGTH, HeaderValue::from(digest.size));
            let octets = HeaderValue::from_static("application/octet-stream");
            headers.insert(header::CONTENT_TYPE, octets);
            let sending = Sending {
                headers,
                body: Some(content.body(digest.size, &movement, &broken)),
                movement,
            };
            let tried = match self.client.attempt(&call, sending).await {
                Ok(response) => {
                    let bytes = self
                        .client
                        .body(response, super::super::wire::LARGEST_BODY)
                        .await;
                    bytes.map_err(Failure::Silent)
                }
                Err(e) => Err(e),
            };
            match tried {
                Ok(bytes) => {
                    let arrived: MemberArrived =
                        self.client.read(&call, &bytes).map_err(Failure::Silent)?;
                    if arrived.digest == *digest {
                        return Ok(());
                    }
                    let text = format!("the server took {} for {digest}", arrived.digest);
                    return Err(Failure::Silent(Error::corrupt(text).during("send")));
                }
                Err(failure) => {
                    if let Some(e) = Arc::try_unwrap(broken).ok().and_then(OnceLock::into_inner) {
                        return Err(Failure::Silent(e));
                    }
                    self.client.again(failure, &mut failed).await?;
                }
            }
        }
    }

    /// Makes all members visible; `None` if the server needs more members first
    /// ([`missing`](UploadSession::missing) says which). Repeating it gives the same answer. One request.
    ///
    /// # Errors
    ///
    /// `Conflict` if the session has ended, `Refused` if the job is over.
    pub async fn commit(&mut self) -> Result<Option<Staged>> {
        Ok(self.commit_all().await?.map(|c| c.staged))
    }

    async fn commit_all(&mut self) -> Result<Option<UploadCommitted>> {
        let call = Call::CommitUpload(self.job.clone(), self.id);
        match self.client.ask(&call, None).await {
            Ok(bytes) => Ok(Some(self.client.read(&call, &bytes)?)),
            Err(Failure::Said(p)) if p.code == Code::Incomplete && !p.missing.is_empty() => {
                self.missing = p.missing.iter().copied().collect();
                Ok(None)
            }
            Err(f) => Err(f.into_error()),
        }
    }

    /// Gives the batch up. One request.
    ///
    /// # Errors
    ///
    /// `Unavailable`: it lapses by itself then.
    pub async fn abort(self) -> Result<()> {
        let call = Call::AbortUpload(self.job.clone(), self.id);
        match self.client.ask(&call, None).await {
            Ok(_) => Ok(()),
            Err(f) if matches!(f.code(), Some(Code::LeaseEnded | Code::NotFound)) => Ok(()),
            Err(f) => Err(f.into_error()),
        }
    }
}

impl BlobClient {
    /// Begins a batch. One request.
    ///
    /// # Errors
    ///
    /// `Refused` for a job that is over and for limits.
    pub async fn begin_upload(
        &self,
        job: &JobId,
        members: Vec<PlannedMember>,
    ) -> Result<UploadSession> {
        let id = SessionId(clock::random_id());
        let call = Call::BeginUpload(job.clone());
        let body = BeginUpload {
            session: id,
            members,
        };
        let bytes = self.act(&call, json(&body)?).await?;
        let begun: UploadBegun = self.read(&call, &bytes)?;
        Ok(UploadSession {
            client: self.clone(),
            job: job.clone(),
            id: begun.session,
            missing: begun.missing.into_iter().collect(),
        })
    }

    /// Uploads a batch: what is there already is not sent, and all members become visible together. Two
    /// requests, and one for each member that is sent. Each content is read once for its digest,
    /// and once more if it is sent.
    ///
    /// # Errors
    ///
    /// As [`UploadSession::put`] and [`UploadSession::commit`]; nothing is visible then.
    pub async fn upload(&self, job: &JobId, uploads: &[Upload]) -> Result<UploadReport> {
        let digests: Vec<Digest> = stream::iter(uploads)
            .map(|u| u.content.digest())
            .buffered(2)
            .try_collect()
            .await?;
        let mut contents: BTreeMap<Digest, &Content> = BTreeMap::new();
        let mut members: BTreeMap<Digest, PlannedMember> = BTreeMap::new();
        for (upload, digest) in uploads.iter().zip(&digests) {
            contents.insert(*digest, &upload.content);
            let member = members.entry(*digest).or_insert(PlannedMember {
                digest: *digest,
                class: upload.class,
                name: upload.name.clone(),
            });
            member.class = member.class.max(upload.class);
        }
        let mut session = self
            .begin_upload(job, members.into_values().collect())
            .await?;
        match self.send_all(&mut session, &contents).await {
            Ok((sent, committed)) => Ok(UploadReport {
                digests,
                sent,
                staged: committed.staged,
                state: committed.state,
                held: committed.held,
            }),
            Err(e) => {
                if let Err(late) = session.abort().await {
                    tracing::debug!(error = %late, "an upload session is left to lapse");
                }
                Err(e)
            }
        }
    }

    async fn send_all(
        &self,
        session: &mut UploadSession,
        contents: &BTreeMap<Digest, &Content>,
    ) -> Result<(BTreeSet<Digest>, UploadCommitted)> {
        let mut sent = BTreeSet::new();
        for _ in 0..ROUNDS {
            let wanted: Vec<Digest> = session.missing.iter().copied().collect();
            let one: &UploadSession = session;
            stream::iter(wanted.iter().map(Ok::<_, Error>))
                .try_for_each_concurrent(MEMBERS_AT_ONCE, |digest| async move {
                    let content = contents.get(digest).ok_or_else(|| {
                        let text = format!("the server misses {digest}, which is not in the batch");
                        Error::corrupt(text).during("upload")
                    })?;
                    one.send(digest, content).await.map_err(Failure::into_error)
                })
                .await?;
            sent.extend(wanted);
            session.missing.clear();
            if let Some(committed) = session.commit_all().await? {
                return Ok((sent, committed));
            }
        }
        Err(Error::new(
            ErrorKind::Conflict,
            format!(
                "the server still misses {} members after {ROUNDS} rounds",
                session.missing.len()
            ),
        )
        .during("upload"))
    }
}
