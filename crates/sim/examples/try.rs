use belady_control::policy::{Availability, belady, nopfs};
use belady_sim::{bound, scenario::*, world};
use std::path::Path;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let sets: Vec<Set> = args[3..].iter().map(|s| Set::parse(s).unwrap()).collect();
    let s = Scenario::load(Path::new(&args[1]), &sets).unwrap();
    let t = std::time::Instant::now();
    let job = s.job().unwrap();
    eprintln!("job {:?}", t.elapsed());
    let t = std::time::Instant::now();
    let b = bound::bound(&job, s.training.epochs);
    eprintln!("bound {:?}", t.elapsed());
    println!(
        "perfect {:.2} bound {:.2} {:?}",
        b.perfect.0,
        b.seconds.0,
        b.epochs
            .iter()
            .map(|e| (
                e.binds(),
                e.seconds().0.round(),
                e.source_bytes / 1000000,
                e.distinct_bytes / 1000000
            ))
            .collect::<Vec<_>>()
    );
    let t = std::time::Instant::now();
    let plan = match args[2].as_str() {
        "belady" => belady::plan(&job).unwrap(),
        _ => nopfs::plan(
            &job,
            nopfs::Options {
                in_order: true,
                cleanup_read: false,
                availability: Availability::Heuristic,
            },
        )
        .unwrap(),
    };
    eprintln!("plan {:?}", t.elapsed());
    let t = std::time::Instant::now();
    let r = world::simulate(&job, &plan, s.training.epochs, &mut |_, _| {});
    eprintln!("run {:?}", t.elapsed());
    let o = &r.outcome;
    println!(
        "seconds {:.2} xbound {:.4} xperfect {:.4} time {:?}\n epochs {:?}\n source {:?}\n first {:?}\n bytes {:?} hit {:?} imb {:.4} {:.4} wait {:.4} misses {} peak {:.3}",
        o.seconds,
        o.seconds / b.seconds.0,
        o.seconds / b.perfect.0,
        o.time,
        o.epoch_seconds,
        o.source_bytes_per_epoch.iter().map(|b| b / 1000000).collect::<Vec<_>>(),
        o.first_reads_per_epoch,
        o.bytes,
        o.hit_ratio,
        o.imbalanced_iterations,
        o.imbalanced_iterations_after_first,
        o.mean_wait_share,
        o.peer_misses,
        o.slow_bytes_peak_over_mean
    );
    println!(
        "excess % of S {:?}",
        o.source_bytes_per_epoch
            .iter()
            .zip(&b.epochs)
            .map(|(s, e)| (*s as f64 - e.source_bytes as f64) / e.distinct_bytes as f64 * 100.0)
            .collect::<Vec<_>>()
    );
    for v in r.violations.iter().take(10) {
        println!("VIOLATION {v}");
    }
}
