//! Settings of the stores: the usual variables of each provider, read once and passed on.

use std::collections::BTreeMap;
use std::fmt;

use crate::error::{Error, Result};

/// Settings by the names that the providers' own tools use: `AWS_*`, `GOOGLE_*`, `AZURE_*`,
/// `STORAGE_EMULATOR_HOST`; and `FORKPOINT_RELAY_MEMORY_MIB`.
///
/// [`Options::from_env`] takes them from the environment; a program that must not depend on its
/// environment starts with [`Options::default`] and sets what it needs.
#[derive(Clone, Default)]
pub struct Options {
    values: BTreeMap<String, String>,
}

impl Options {
    /// The variables of the process that concern object stores.
    pub fn from_env() -> Options {
        let values = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .filter(|(name, _)| {
                ["AWS_", "GOOGLE_", "AZURE_", "AZURITE_"]
                    .iter()
                    .any(|prefix| name.starts_with(prefix))
                    || ["STORAGE_EMULATOR_HOST", super::RELAY_MEMORY_SETTING].contains(&&**name)
            })
            .collect();
        Options { values }
    }

    /// Sets one value, by the name of its environment variable.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Into<String>) -> Options {
        self.values.insert(name.into(), value.into());
        self
    }

    /// The value of one setting; an empty one counts as absent.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.values
            .get(name)
            .map(String::as_str)
            .filter(|v| !v.is_empty())
    }

    /// True if the setting is `1`, `true`, `yes` or `on`.
    pub fn is_on(&self, name: &str) -> bool {
        self.get(name)
            .is_some_and(|v| ["1", "true", "yes", "on"].contains(&v.to_ascii_lowercase().as_str()))
    }

    /// All settings whose names begin with `prefix`.
    pub(crate) fn with_prefix<'a>(
        &'a self,
        prefix: &'a str,
    ) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.values
            .iter()
            .filter(move |(name, value)| name.starts_with(prefix) && !value.is_empty())
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

/// Shows which settings are there, never their values: many are secrets.
impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.values.keys()).finish()
    }
}

/// Refuses an endpoint that is no URL of a web server: a client would panic on it.
pub(crate) fn check_endpoint(endpoint: &str) -> Result<()> {
    let well_formed = url::Url::parse(endpoint).is_ok_and(|url| {
        matches!(url.scheme(), "http" | "https")
            && url.has_host()
            && !endpoint.contains(char::is_whitespace)
    });
    match well_formed {
        true => Ok(()),
        false => Err(Error::invalid(format!("`{endpoint}` is no endpoint"))
            .during("open")
            .hint("write it as http://HOST:PORT or https://HOST")),
    }
}

/// Refuses a name that no bucket or container can have: a client would panic on some.
pub(crate) fn check_name(name: &str, at: &str) -> Result<()> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-$:".contains(c);
    match !name.is_empty() && name.chars().all(allowed) {
        true => Ok(()),
        false => Err(Error::invalid(format!("`{name}` is no name of a bucket"))
            .during("open")
            .at(at)),
    }
}
