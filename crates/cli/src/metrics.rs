//! The option `--metrics ADDRESS:PORT` of several commands.

use anyhow::Context;
use belady_engine::metrics::{MetricsServer, serve_text};

use crate::usage::UsageError;
use belady_base::environment;

/// The address that serves metrics, and the token that clients must send.
#[derive(Clone, Debug)]
pub struct MetricsPort {
    address: String,
    token: String,
}

impl MetricsPort {
    /// Reads the token from the environment.
    ///
    /// # Errors
    /// If no token is set.
    pub fn at(address: &str) -> Result<Self, UsageError> {
        let token = environment::METRICS_TOKEN.value().and_then(|token| token.into_string().ok());
        let token = token.ok_or_else(|| {
            UsageError::new(format!(
                "--metrics {address} needs a token: set {} to the token that scrapers send",
                environment::METRICS_TOKEN.name
            ))
        })?;
        Ok(Self { address: address.to_owned(), token })
    }

    /// Returns the address of process `place` on this machine. The processes of a job use
    /// consecutive ports, starting with the given one.
    fn of_process(self, place: usize) -> anyhow::Result<Self> {
        let Some((host, port)) = self.address.rsplit_once(':') else { return Ok(self) };
        // The system interprets port 0 and text that is not a port.
        let Some(port) = port.parse::<u16>().ok().filter(|&port| port > 0) else {
            return Ok(self);
        };
        let own = usize::from(port) + place;
        anyhow::ensure!(
            u16::try_from(own).is_ok(),
            "--metrics {} leaves no port for process {place} of this machine: use a lower port",
            self.address
        );
        Ok(Self { address: format!("{host}:{own}"), token: self.token })
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
        let server = serve_text(self.address.as_str(), &self.token, figures)
            .with_context(|| format!("cannot serve metrics at {}", self.address))?;
        // With port 0, the system has chosen the port.
        eprintln!("metrics at http://{}/metrics", server.address());
        Ok(server)
    }
}
