//! How many objects the verbs that copy a fork have under way.

// No docstring: it would stand in the help of each verb in the place of its own.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Concurrency {
    /// Objects under way at once. Left out: 32 on local disk, and on object stores as many as the
    /// store answers well, up to 256.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    concurrency: Option<u16>,
}

impl Concurrency {
    /// Objects at once, where the user says how many.
    pub(super) fn objects_at_once(&self) -> Option<usize> {
        self.concurrency.map(usize::from)
    }
}
