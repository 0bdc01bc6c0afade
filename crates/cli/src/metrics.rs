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
