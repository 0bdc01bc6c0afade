//! `--metrics ADDRESS:PORT`, which several commands have.

use anyhow::Context;
use belady_engine::metrics::{MetricsServer, serve_text};

use crate::environment;
use crate::usage::UsageError;

/// Where metrics are offered, and to whom.
#[derive(Clone, Debug)]
pub struct MetricsPort {
    address: String,
    token: String,
}

impl MetricsPort {
    pub fn at(address: &str) -> Result<Self, UsageError> {
        let token = environment::METRICS_TOKEN.value().and_then(|token| token.into_string().ok());
        let token = token.ok_or_else(|| {
            UsageError::new(format!(
                "--metrics {address} needs a token: set {} to the one that scrapers send",
                environment::METRICS_TOKEN.name
            ))
        })?;
        Ok(Self { address: address.to_owned(), token })
    }

    /// That of the process which is number `place` of those of one job on a machine: each has a port of its
    /// own, from the one that was given on.
    fn of_process(self, place: usize) -> anyhow::Result<Self> {
        let Some((host, port)) = self.address.rsplit_once(':') else { return Ok(self) };
        // Whatever is no port, and port 0, is as the system takes it.
        let Some(port) = port.parse::<u16>().ok().filter(|&port| port > 0) else {
            return Ok(self);
        };
        let own = usize::from(port) + place;
        anyhow::ensure!(
            u16::try_from(own).is_ok(),
            "--metrics {} leaves no port for process {place} of this machine, take a lower one",
            self.address
        );
        Ok(Self { address: format!("{host}:{own}"), token: self.token })
    }

    /// As `offer`, of the process which is number `place` on this machine. A port that cannot be had is
    /// told, and nothing else stops: other processes count on this one.
    pub fn try_offer(
        &self,
        place: usize,
        figures: impl Fn() -> String + Send + 'static,
    ) -> Option<MetricsServer> {
        let offered = self.clone().of_process(place).and_then(|own| own.offer(figures));
        offered.inspect_err(|error| eprintln!("{error:#}; this process goes on without them")).ok()
    }

    /// Until the answer is dropped.
    pub fn offer(
        &self,
        figures: impl Fn() -> String + Send + 'static,
    ) -> anyhow::Result<MetricsServer> {
        let server = serve_text(self.address.as_str(), &self.token, figures)
            .with_context(|| format!("cannot offer metrics at {}", self.address))?;
        // With port 0 only the system knows which one it is.
        eprintln!("metrics at http://{}/metrics", server.address());
        Ok(server)
    }
}
