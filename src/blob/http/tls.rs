//! TLS of the service: rustls, with the provider that the HTTP client brings.

use std::path::Path;
use std::sync::Arc;

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::aws_lc_rs::default_provider;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use crate::error::{Error, Result};

use super::TlsFiles;

fn unreadable(at: &Path, e: impl std::fmt::Display) -> Error {
    Error::invalid(format!("no PEM file that can be read: {e}"))
        .during("start TLS")
        .at(at.display())
}

fn certificates(at: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(at).map_err(|e| unreadable(at, e))?;
    let all: std::result::Result<Vec<_>, _> = read.collect();
    let all = all.map_err(|e| unreadable(at, e))?;
    match all.is_empty() {
        true => Err(unreadable(at, "it holds no certificate")),
        false => Ok(all),
    }
}

/// Takes connections with TLS 1.2 and later; with client authorities only those of their clients.
pub(super) fn acceptor(files: &TlsFiles) -> Result<TlsAcceptor> {
    let provider = Arc::new(default_provider());
    let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|e| unreadable(&files.certificates, e))?;
    let config = match &files.client_authorities {
        None => config.with_no_client_auth(),
        Some(at) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(at)? {
                roots.add(certificate).map_err(|e| unreadable(at, e))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            config.with_client_cert_verifier(verifier.build().map_err(|e| unreadable(at, e))?)
        }
    };
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|e| unreadable(&files.key, e))?;
    let config = config
        .with_single_cert(certificates(&files.certificates)?, key)
        .map_err(|e| unreadable(&files.certificates, e))?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}
