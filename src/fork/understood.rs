//! A fork as it follows from the commit object alone: what is copied to where, and the new commit
//! object. One request to read it, no look at any object.

use std::collections::HashMap;

use bytes::Bytes;
use sha2::{Digest, Sha256};

use crate::error::{Error, ErrorKind, Result};
use crate::restore::{
    ForkId, ForkPlan, ForkTerms, Ground, Layout, places_of, plan_fork, refuse_overlap,
};
use crate::snapshot::{CommitObject, Snapshot};
use crate::store::{Location, Stat, Stores};

use super::site::Site;

/// The source, understood by given terms, and the places of its duplicates.
pub(super) struct Understood {
    pub(super) commit: CommitObject,
    pub(super) source: Snapshot,
    pub(super) terms: ForkTerms,
    pub(super) layout: Layout,
    /// Of each object of the source, in their order.
    pub(super) places: Vec<Location>,
    pub(super) metadata_sha256: String,
}

impl Understood {
    /// What `source`, read from `commit` by `terms`, becomes below `destination`.
    pub(super) async fn new(
        stores: &Stores,
        commit: CommitObject,
        source: Snapshot,
        terms: ForkTerms,
        destination: &Location,
    ) -> Result<Understood> {
        let digest = Sha256::digest(&commit.bytes);
        let id = ForkId::with_naming(
            &stores.canonical(&commit.location),
            &digest,
            &stores.canonical(destination),
            terms.naming,
        );
        let layout = Layout::with_naming(
            id,
            &source.directory,
            source.checkpoint_id,
            destination,
            &source.folders,
            terms.naming,
        )?;
        layout
            .snapshot()
            .refuse_control_characters()
            .map_err(|e| e.during("fork to"))?;
        refuse_overlap(
            &Ground::of_source(&source).real(stores).await?,
            &Ground::of_fork(&layout)?.real(stores).await?,
        )
        .map_err(|e| e.during("fork to").at(destination))?;
        let places = places_of(&source, &layout, commit.format.commit_object())?;
        Ok(Understood {
            metadata_sha256: digest.iter().map(|b| format!("{b:02x}")).collect(),
            commit,
            source,
            terms,
            layout,
            places,
        })
    }

    /// The plan, given what the stores say of each object.
    pub(super) fn plan(
        &self,
        stores: &Stores,
        stats: &HashMap<Location, Option<Stat>>,
    ) -> Result<ForkPlan> {
        plan_fork(
            &self.source,
            &self.layout,
            &self.places,
            &self.metadata_sha256,
            stats,
            |from, to, size| stores.method(from, to, size),
        )
    }

    /// The new commit object.
    pub(super) fn metadata(&self) -> Result<Bytes> {
        let objects = self.source.objects.iter().map(|o| &o.location);
        let folders = self.layout.folders().iter().map(|(from, to)| (from, to));
        let places: HashMap<&Location, &Location> =
            objects.zip(&self.places).chain(folders).collect();
        let lookup = self.terms.lookup.lookup(&self.commit.directory)?;
        self.commit
            .format
            .rewrite(
                &self.commit.bytes,
                &lookup,
                self.layout.snapshot(),
                &|old| match places.get(old) {
                    Some(new) => Ok((*new).clone()),
                    None => Err(
                        Error::new(ErrorKind::Internal, "a reference is not in the plan").at(old),
                    ),
                },
            )
            .map(Bytes::from)
            .map_err(|e| e.during("rewrite").at(&self.commit.location))
    }

    /// Where it is written.
    pub(super) fn site<'a>(&self, stores: &'a Stores) -> Result<Site<'a>> {
        Site::new(
            stores,
            self.layout.id().as_str(),
            &self.source.directory,
            self.layout.root(),
            self.layout.snapshot(),
            self.commit.format.commit_object(),
        )
    }
}
