//! Locations as users type them.

use crate::error::{Error, ErrorKind, Result};
use crate::store::{Location, Provider};

/// A location on the command line: as in metadata, and besides a relative path of this machine.
pub(super) fn parse(text: &str) -> Result<Location> {
    let looks_like_url = text
        .find(':')
        .is_some_and(|at| !text[..at].contains('/') && at > 1);
    let location = if looks_like_url || text.starts_with('/') || text.is_empty() {
        Location::parse(text)?
    } else {
        let here = std::env::current_dir().map_err(|e| {
            Error::invalid(format!("the current folder is not known: {e}")).at(text)
        })?;
        let path = here.join(text);
        let path = path
            .to_str()
            .ok_or_else(|| Error::invalid("the path is not UTF-8").at(path.display()))?;
        Location::parse(path)?
    };
    if location.provider() == Provider::Memory {
        return Err(Error::new(
            ErrorKind::Invalid,
            "memory: ends with the process, so it is for programs that use the library",
        )
        .at(text));
    }
    Ok(location)
}
