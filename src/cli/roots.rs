//! Where verbs of ownership look: the roots that are named, what else may depend on them, and what
//! must be looked at with them.

use crate::error::Result;
use crate::ownership::{Survey, common_root, survey};
use crate::store::{Location, Stores};

use super::location;
use super::ui::Ui;

/// Roots of other jobs, whose snapshots may need objects of this one.
#[derive(Debug, clap::Args)]
pub(super) struct Also {
    /// Another root whose jobs may have been started from snapshots here, so that their references
    /// count; it is only read. May be given more than once.
    #[arg(long, value_name = "ROOT")]
    also: Vec<String>,
}

/// What is known, and what was asked about.
pub(super) struct Looked {
    pub(super) survey: Survey,
    /// The roots as the user named them, as they really are.
    pub(super) roots: Vec<Location>,
}

impl Also {
    /// Looks at roots, at the jobs beside them and at the other roots.
    pub(super) async fn look(
        &self,
        stores: &Stores,
        ui: &Ui,
        roots: &[Location],
    ) -> Result<Looked> {
        let mut named = Vec::new();
        for root in roots {
            stores.check_bucket(root).await?;
            named.push(stores.real(root).await?);
        }
        let mut all: Vec<Location> = named.iter().map(common_root).collect();
        all.extend(self.locations()?);
        Ok(Looked {
            survey: survey(stores, &all, ui).await?,
            roots: named,
        })
    }

    pub(super) fn locations(&self) -> Result<Vec<Location>> {
        self.also.iter().map(|text| location::parse(text)).collect()
    }
}

/// Locations of one or more roots.
pub(super) fn parse_all(texts: &[String]) -> Result<Vec<Location>> {
    texts.iter().map(|text| location::parse(text)).collect()
}
