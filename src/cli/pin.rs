//! `forkpoint pin`.

use clap::Subcommand;

use crate::error::Result;
use crate::ownership::{
    Access, PinRequest, is_pinned_as, parse_millis, pin, pins, snapshot_is_there, unpin,
};
use crate::report::{pins_json, pins_text, unpinned_json, unpinned_text};
use crate::store::Stores;

use super::{Output, exit, location};

/// Named reasons to keep a snapshot: no clean deletes what is pinned.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Pin a snapshot.
    Add {
        /// The snapshot's folder.
        snapshot: String,
        /// The name of the pin: letters, digits, `.`, `_`, `-`.
        name: String,
        /// Why it is kept.
        #[arg(long)]
        reason: String,
        /// Who wants it kept. Left out: the user that runs this.
        #[arg(long, env = "USER", default_value = "unknown")]
        owner: String,
        /// The pin counts no more after this time, such as 30d.
        #[arg(long, value_name = "TIME")]
        expires_in: Option<String>,
    },
    /// Remove a pin; one that is not there is fine.
    Rm {
        /// The snapshot's folder.
        snapshot: String,
        /// The name of the pin.
        name: String,
    },
    /// List the pins of a snapshot.
    Ls {
        /// The snapshot's folder.
        snapshot: String,
    },
}

pub(super) async fn run(args: &Args, stores: &Stores) -> Result<Output> {
    let (What::Add { snapshot, .. } | What::Rm { snapshot, .. } | What::Ls { snapshot }) =
        &args.what;
    let at = stores.real(&location::parse(snapshot)?).await?;
    let mut removed = None;
    match &args.what {
        What::Add {
            name,
            reason,
            owner,
            expires_in,
            ..
        } => {
            let expires_unix_ms = match expires_in {
                Some(text) => Some(stores.now().saturating_add(parse_millis(text)?)),
                None => None,
            };
            let request = PinRequest {
                name: name.clone(),
                owner: owner.clone(),
                reason: reason.clone(),
                expires_unix_ms,
                fork: None,
            };
            pin(stores, &at, &request).await?;
        }
        What::Rm { name, .. } => {
            let was_there = is_pinned_as(stores, &at, name).await?;
            unpin(stores, &at, name).await?;
            removed = Some((name, was_there));
        }
        What::Ls { .. } => {}
    }
    let pins = pins(stores, &at).await?;
    if pins.is_empty() {
        // Pins may outlive a snapshot; a name that is misspelt has neither.
        snapshot_is_there(stores, &at).await?;
    }
    let (text, json) = (pins_text(&at, &pins, stores.now()), pins_json(&at, &pins));
    let (text, json) = match removed {
        Some((name, was_there)) => (
            unpinned_text(name, was_there) + &text,
            unpinned_json(json, was_there),
        ),
        None => (text, json),
    };
    Ok(Output {
        text,
        json,
        svg: None,
        code: exit::DONE,
    })
}
