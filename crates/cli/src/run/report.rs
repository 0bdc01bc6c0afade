//! The report of `belady run`, as a table or as one JSON object.

use std::time::Duration;

use belady_transparent::{LevelReport, Totals, TransparentReport};
use serde_json::{Value, json};

use crate::text::{bytes, grouped, seconds, table};

/// The measurements of a run.
#[derive(Clone, Debug)]
pub struct RunReport {
    pub exit_status: u8,
    /// The time that the program ran.
    pub seconds: f64,
    pub job: TransparentReport,
}

impl RunReport {
    /// Returns the report as JSON.
    pub fn json(&self) -> Value {
        let job = &self.job;
        json!({
            "exit_status": self.exit_status,
            "seconds": self.seconds,
            "levels": job.levels.iter().map(level_json).collect::<Vec<_>>(),
            "source": totals_json(&job.source),
            "copied": {
                "files": job.copied.files,
                "bytes": job.copied.bytes,
                "busy_seconds": job.copied.busy.as_secs_f64(),
            },
            "refused": job.refused,
            "failed": job.failed,
            "first_failure": job.first_failure,
            "dropped": job.dropped,
            "lost": job.lost,
            "ahead": job.ahead.map(|ahead| {
                json!({ "kept": ahead.kept, "passed": ahead.passed, "absent": ahead.absent })
            }),
            "local": job.local.map(|(bytes, time)| {
                json!({ "bytes": bytes, "seconds": time.as_secs_f64() })
            }),
            "seconds_saved": job.seconds_saved(),
        })
    }

    /// Returns the report as text.
    pub fn text(&self) -> String {
        let job = &self.job;
        let headings = ["level", "files", "held", "of", "opens", "stats", "bytes opened"];
        let mut rows: Vec<Vec<String>> = job.levels.iter().map(level_row).collect();
        let mut source = vec!["source".to_owned()];
        source.extend([String::new(), String::new(), String::new()]);
        source.extend(totals_cells(&job.source));
        rows.push(source);
        let mut out = table(&headings, &rows);
        out += "bytes opened are those of whole files; the part that was read is not known\n\n";
        for line in self.notes() {
            out += &line;
            out.push('\n');
        }
        out
    }

    fn notes(&self) -> Vec<String> {
        let job = &self.job;
        let mut notes = vec![
            format!(
                "the program ended with status {} after {}",
                self.exit_status,
                seconds(self.seconds)
            ),
            format!(
                "copied {}, {}, in {} of thread time",
                files(job.copied.files),
                bytes(job.copied.bytes),
                seconds(job.copied.busy.as_secs_f64())
            ),
        ];
        if let Some(ahead) = job.ahead {
            let [kept, passed] = [ahead.kept, ahead.passed].map(files);
            notes.push(format!(
                "ahead of the reader: {kept} kept, {passed} passed through the window"
            ));
            if ahead.absent > 0 {
                let absent = files(ahead.absent);
                notes.push(format!("{absent} of the order could not be opened"));
            }
        }
        if job.refused > 0 {
            notes.push(format!("no level had space for {}", files(job.refused)));
        }
        if job.failed > 0 {
            let reason = job.first_failure.as_deref().unwrap_or("the reason is not known");
            notes.push(format!("{} could not be copied, the first: {reason}", files(job.failed)));
        }
        if job.dropped > 0 {
            let copies = if job.dropped == 1 { "copy was" } else { "copies were" };
            let dropped = grouped(job.dropped as f64, 0);
            notes.push(format!("{dropped} {copies} dropped because the file changed"));
        }
        if job.lost > 0 {
            let requests = if job.lost == 1 { "request" } else { "requests" };
            let lost = grouped(job.lost as f64, 0);
            notes.push(format!("{lost} {requests} for a copy lost because the queue was full"));
        }
        notes.push(saved(job));
        notes
    }
}

/// Formats the estimate of [`TransparentReport::seconds_saved`] with its formula.
fn saved(job: &TransparentReport) -> String {
    let Some(time) = job.seconds_saved() else {
        return "time saved is not known: the source was not measured, since nothing was copied"
            .to_owned();
    };
    let served = job.levels.iter().map(|level| level.used.bytes).sum();
    let source = per_gigabyte((job.copied.bytes, job.copied.busy));
    let local = match job.local {
        Some(measured) if measured.0 > 0 => format!("{} s/GB from a level", per_gigabyte(measured)),
        _ => "0 s/GB from a level, which was not measured".to_owned(),
    };
    format!(
        "saved about {}, an estimate: {} opened in levels x ({source} s/GB copying from the source - {local})",
        seconds(time),
        bytes(served)
    )
}

fn per_gigabyte((bytes, time): (u64, Duration)) -> String {
    format!("{:.3}", time.as_secs_f64() / (bytes.max(1) as f64 / 1e9))
}

fn files(count: u64) -> String {
    format!("{} {}", grouped(count as f64, 0), if count == 1 { "file" } else { "files" })
}

fn level_row(level: &LevelReport) -> Vec<String> {
    let mut row = vec![
        level.name.clone(),
        grouped(level.files as f64, 0),
        bytes(level.bytes),
        bytes(level.quota),
    ];
    row.extend(totals_cells(&level.used));
    row
}

fn totals_cells(totals: &Totals) -> [String; 3] {
    [grouped(totals.opens as f64, 0), grouped(totals.stats as f64, 0), bytes(totals.bytes)]
}

fn level_json(level: &LevelReport) -> Value {
    json!({
        "name": level.name,
        "quota": level.quota,
        "files": level.files,
        "bytes": level.bytes,
        "used": totals_json(&level.used),
    })
}

fn totals_json(totals: &Totals) -> Value {
    json!({ "opens": totals.opens, "stats": totals.stats, "bytes_opened": totals.bytes })
}

#[cfg(test)]
mod tests {
    use belady_transparent::CopyTotals;

    use super::*;

    fn report() -> RunReport {
        let used = Totals { opens: 1200, stats: 7, bytes: 2_000_000_000 };
        let level = LevelReport {
            name: "/local/nvme".to_owned(),
            quota: 4_000_000_000,
            files: 600,
            bytes: 1_000_000_000,
            used,
        };
        let job = TransparentReport {
            levels: vec![level],
            source: Totals { opens: 601, stats: 2, bytes: 1_100_000_000 },
            copied: CopyTotals { files: 600, bytes: 1_000_000_000, busy: Duration::from_secs(10) },
            refused: 1,
            failed: 0,
            first_failure: None,
            dropped: 0,
            lost: 0,
            ahead: None,
            local: Some((500_000_000, Duration::from_millis(250))),
        };
        RunReport { exit_status: 3, seconds: 61.5, job }
    }

    #[test]
    fn the_text_has_a_table_and_the_formula_of_the_estimate() {
        let wanted = "\
level        files     held       of  opens  stats  bytes opened
/local/nvme    600  1.00 GB  4.00 GB  1,200      7       2.00 GB
source                                  601      2       1.10 GB
bytes opened are those of whole files; the part that was read is not known

the program ended with status 3 after 61.50 s
copied 600 files, 1.00 GB, in 10.00 s of thread time
no level had space for 1 file
saved about 19.00 s, an estimate: 2.00 GB opened in levels x (10.000 s/GB copying from the source - 0.500 s/GB from a level)
";
        assert_eq!(report().text(), wanted);
    }

    #[test]
    fn the_text_names_failures_and_unknown_figures() {
        let mut report = report();
        report.job.copied = CopyTotals::default();
        report.job.failed = 2;
        report.job.first_failure = Some("/pfs/a: Permission denied".to_owned());
        (report.job.dropped, report.job.lost) = (1, 5);
        let text = report.text();
        for part in [
            "2 files could not be copied, the first: /pfs/a: Permission denied\n",
            "1 copy was dropped because the file changed\n",
            "5 requests for a copy lost because the queue was full\n",
            "time saved is not known: the source was not measured",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        assert_eq!(report.json()["seconds_saved"], Value::Null);
    }
}
