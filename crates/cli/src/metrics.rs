//! The option `--metrics ADDRESS:PORT` of several commands.

use anyhow::Context;
use belady_engine::metrics::{MetricsServer, serve_text};

use crate::usage::UsageError;
use belady_base::environment;

/// The address that serves metrics, and the token that clients must send.
#[derive(Clone, Debug)]
pub struct MetricsPort {
    host: String,
    port: u16,
    token: String,
}

impl MetricsPort {
    /// Reads the token from the environment.
    ///
    /// # Errors
    /// If `address` is not ADDRESS:PORT, or no token is set.
    pub fn at(address: &str) -> Result<Self, UsageError> {
        let parts = address.rsplit_once(':').filter(|(host, _)| !host.is_empty());
        let (host, port) = parts
            .and_then(|(host, port)| Some((host.to_owned(), port.parse().ok()?)))
            .ok_or_else(|| {
                UsageError::new(format!(
                    "--metrics {address} is not ADDRESS:PORT; write for example 127.0.0.1:9464"
                ))
            })?;
        let token = environment::METRICS_TOKEN.value().and_then(|token| token.into_string().ok());
        let token = token.ok_or_else(|| {
            UsageError::new(format!(
                "--metrics {address} needs a token: set {} to the token that scrapers send",
                environment::METRICS_TOKEN.name
            ))
        })?;
        Ok(Self { host, port, token })
    }

    /// Returns the address of process `place` on this machine. The processes of a job use
    /// consecutive ports, starting with the given one.
    fn of_process(mut self, place: usize) -> anyhow::Result<Self> {
        // With port 0 the system chooses each port.
        if self.port > 0 {
            let own = u16::try_from(usize::from(self.port) + place).ok();
            self.port = own.with_context(|| {
                let Self { host, port, .. } = &self;
                format!(
                    "--metrics {host}:{port} leaves no port for process {place} of this machine: \
                     use a lower port"
                )
            })?;
        }
        Ok(self)
    }

    /// Serves metrics as `offer` does, for process `place` on this machine. A port that is not
    /// available is logged and does not stop the process, since other processes need it.
    pub fn try_offer(
        &self,
        place: usize,
        figures: impl Fn() -> String + Send + 'static,
    ) -> Option<MetricsServer> {
        let offered = self.clone().of_process(place).and_then(|own| own.offer(figures));
        offered
            .inspect_err(|error| eprintln!("{error:#}; this process continues without them"))
            .ok()
    }

    /// Serves metrics until the returned server is dropped.
    pub fn offer(
        &self,
        figures: impl Fn() -> String + Send + 'static,
    ) -> anyhow::Result<MetricsServer> {
        let address = format!("{}:{}", self.host, self.port);
        let server = serve_text(address.as_str(), &self.token, figures)
            .with_context(|| format!("cannot serve metrics at {address}"))?;
        // With port 0, the system has chosen the port.
        eprintln!("metrics at http://{}/metrics", server.address());
        Ok(server)
    }
}
