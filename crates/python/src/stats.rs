//! Converts metrics to dicts.

use belady_data::tier::TierStatus;
use belady_engine::metrics::{MetricsSnapshot, RankSnapshot};
use belady_node::RankMonitor;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use serde_json::Value;

use crate::errors::BeladyError;

/// Returns all metrics of a snapshot by their names in Rust, with `hit_ratio` and
/// `blocked_seconds`, and with what follows from the counts of each rank.
pub fn figures<'py>(py: Python<'py>, snapshot: &MetricsSnapshot) -> PyResult<Bound<'py, PyDict>> {
    let value = serde_json::to_value(snapshot)
        .map_err(|error| BeladyError::new_err(format!("cannot convert the metrics: {error}")))?;
    let dict = PyDict::new(py);
    if let Value::Object(fields) = value {
        for (name, value) in fields {
            dict.set_item(name, translated(py, value)?)?;
        }
    }
    dict.set_item("hit_ratio", snapshot.hit_ratio())?;
    dict.set_item("blocked_seconds", snapshot.blocked_seconds())?;
    dict.set_item("ranks", ranks(py, &snapshot.ranks)?)?;
    Ok(dict)
}

fn ranks<'py>(py: Python<'py>, ranks: &[RankSnapshot]) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for rank in ranks {
        let dict = PyDict::new(py);
        dict.set_item("rank", rank.rank)?;
        dict.set_item("batches", rank.batches)?;
        dict.set_item("blocked_seconds", rank.blocked_seconds())?;
        dict.set_item("straggled", rank.straggled)?;
        dict.set_item("straggling_share", rank.straggling_share())?;
        dict.set_item("straggling_seconds", rank.straggling_seconds())?;
        list.append(dict)?;
    }
    Ok(list)
}

/// Returns the metrics of a job's engine, and under "held" the status of each tier.
pub fn of_job<'py>(py: Python<'py>, monitor: &RankMonitor) -> PyResult<Bound<'py, PyDict>> {
    let (snapshot, status) = py.detach(|| monitor.figures());
    let dict = figures(py, &snapshot)?;
    dict.set_item("held", tiers(py, &status)?)?;
    Ok(dict)
}

/// Returns the status of each tier.
fn tiers<'py>(py: Python<'py>, tiers: &[TierStatus]) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for tier in tiers {
        let dict = PyDict::new(py);
        dict.set_item("capacity", tier.capacity.0)?;
        dict.set_item("used", tier.used.0)?;
        dict.set_item("samples", tier.samples)?;
        dict.set_item("degraded", tier.degraded.as_deref())?;
        list.append(dict)?;
    }
    Ok(list)
}

fn translated(py: Python<'_>, value: Value) -> PyResult<Py<PyAny>> {
    Ok(match value {
        Value::Null => py.None(),
        Value::Bool(truth) => truth.into_pyobject(py)?.to_owned().into_any().unbind(),
        Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(whole), _) => whole.into_pyobject(py)?.into_any().unbind(),
            (_, Some(whole)) => whole.into_pyobject(py)?.into_any().unbind(),
            _ => number.as_f64().into_pyobject(py)?.into_any().unbind(),
        },
        Value::String(text) => text.into_pyobject(py)?.into_any().unbind(),
        Value::Array(values) => {
            let list = PyList::empty(py);
            for value in values {
                list.append(translated(py, value)?)?;
            }
            list.into_any().unbind()
        }
        Value::Object(fields) => {
            let dict = PyDict::new(py);
            for (name, value) in fields {
                dict.set_item(name, translated(py, value)?)?;
            }
            dict.into_any().unbind()
        }
    })
}
