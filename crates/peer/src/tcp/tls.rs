//! TLS with the user's certificates: each side shows one and checks the other's.
//!
//! The job's key authenticates the other end of the connection; TLS encrypts what is sent. The
//! proof of the key covers the TLS session ([`Session::binding`]), so an attacker with a
//! certificate alone cannot sit between two nodes.

use std::fmt::Display;
use std::io::{self, IoSlice, Read, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use belady_base::sync::Arc;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{
    ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection,
};
use serde::{Deserialize, Serialize};

use super::socket::Socket;
use crate::PeerError;

/// The TLS files, in PEM format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tls {
    /// This node's certificate and its intermediate certificates.
    pub certificate: PathBuf,
    /// The private key of the certificate.
    pub key: PathBuf,
    /// Certificates of the authorities that all nodes trust.
    pub authority: PathBuf,
    /// The name in every node's certificate. `None`: each certificate has the IP address of its
    /// node.
    pub name: Option<String>,
}

/// The contents of the files.
#[derive(Clone, Debug)]
pub struct Credentials {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    name: Option<ServerName<'static>>,
}

impl Tls {
    /// Reads the files.
    pub fn load(&self) -> Result<Credentials, PeerError> {
        let chain = certificates(&self.certificate)?;
        let key = PrivateKeyDer::from_pem_file(&self.key)
            .map_err(|error| cannot("private key", &self.key, &error))?;
        let mut roots = RootCertStore::empty();
        for root in certificates(&self.authority)? {
            roots.add(root).map_err(|error| cannot("certificate", &self.authority, &error))?;
        }
        let (roots, provider) = (Arc::new(roots), Arc::new(ring::default_provider()));
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
            .build()
            .map_err(|error| cannot("authority", &self.authority, &error))?;
        let unfit = |error: rustls::Error| cannot("certificate and key", &self.certificate, &error);
        let client = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(unfit)?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain.clone(), key.clone_key())
            .map_err(unfit)?;
        let server = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(unfit)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)
            .map_err(unfit)?;
        let name = self.name.clone().map(|name| {
            let no_name = |_| PeerError::Setup(format!("the TLS name {name} is not a host name"));
            ServerName::try_from(name.clone()).map_err(no_name)
        });
        let name = name.transpose()?;
        Ok(Credentials { client: Arc::new(client), server: Arc::new(server), name })
    }
}

impl Credentials {
    /// Starts the session of the connecting side.
    pub fn connect(&self, socket: Socket, to: IpAddr) -> io::Result<Session> {
        let name = self.name.clone().unwrap_or_else(|| ServerName::IpAddress(to.into()));
        let client = ClientConnection::new(self.client.clone(), name).map_err(io::Error::other)?;
        Session::begin(client.into(), socket)
    }

    /// Starts the session of the listening side.
    pub fn accept(&self, socket: Socket) -> io::Result<Session> {
        let server = ServerConnection::new(self.server.clone()).map_err(io::Error::other)?;
        Session::begin(server.into(), socket)
    }
}

/// A connection under TLS.
#[derive(Debug)]
pub struct Session {
    tls: Connection,
    pub socket: Socket,
}

impl Session {
    fn begin(mut tls: Connection, mut socket: Socket) -> io::Result<Self> {
        while tls.is_handshaking() {
            tls.complete_io(&mut socket)?;
        }
        Ok(Self { tls, socket })
    }

    /// Returns a number that only the two ends of this session know.
    pub fn binding(&self) -> io::Result<[u8; 32]> {
        let label = b"EXPORTER-belady-peer";
        self.tls.export_keying_material([0; 32], label, None).map_err(io::Error::other)
    }

    /// Sends buffered data.
    fn send(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.socket)?;
        }
        Ok(())
    }
}

impl Read for Session {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.tls.reader().read(into) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.tls.complete_io(&mut self.socket)?;
                }
                done => return done,
            }
        }
    }
}

impl Write for Session {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        // As much as fits into the buffer, which is empty now.
        let written = self.tls.writer().write_vectored(pieces)?;
        self.send()?;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send()
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, PeerError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(found) if found.is_empty() => Err(cannot("certificate", path, &"it contains none")),
        Ok(found) => Ok(found),
        Err(error) => Err(cannot("certificate", path, &error)),
    }
}

fn cannot(what: &str, path: &Path, why: &dyn Display) -> PeerError {
    PeerError::Setup(format!("the TLS {what} in {} cannot be used: {why}", path.display()))
}
