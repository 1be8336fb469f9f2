//! TLS, by a certificate and a key in files.

use crate::settings::TlsFiles;
use fencepost::{Code, Error, Result};
use std::{
    fmt::Display,
    path::Path,
    sync::{Arc, PoisonError, RwLock},
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    },
};

/// What is presented to clients. It can be read again, when a certificate was renewed.
#[derive(Debug)]
pub struct Tls {
    files: TlsFiles,
    config: RwLock<Arc<ServerConfig>>,
}

impl Tls {
    pub fn read(files: TlsFiles) -> Result<Self> {
        Ok(Self { config: RwLock::new(config(&files)?), files })
    }

    /// If what is there now cannot be used, what was read before stays in use.
    pub fn read_again(&self) -> Result<()> {
        let config = config(&self.files)?;
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.config.read().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

fn config(files: &TlsFiles) -> Result<Arc<ServerConfig>> {
    let certs = CertificateDer::pem_file_iter(&files.cert)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|e| unreadable("certificate", &files.cert, e))?;
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|e| unreadable("key", &files.key, e))?;
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(Error::internal)?;
    let mut config = builder
        .with_no_client_auth()
        .with_single_cert(certs, key)
        .map_err(|e| unreadable("certificate", &files.cert, e))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn unreadable(what: &str, path: &Path, e: impl Display) -> Error {
    Error::new(Code::Invalid, format!("the TLS {what} `{}` cannot be used: {e}", path.display()))
        .hint("both are PEM files, and belong together")
}
