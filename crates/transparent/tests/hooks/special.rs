//! Files opened outside `main`: in children, threads, signal handlers and other libraries.

use std::fs;
use std::path::Path;
use std::process::Command;

use belady_board::{Revalidate, VARIABLE};
use belady_testing::not_run;

use crate::stage::{Stage, compile, output, probe};

fn stage() -> Stage {
    let mut stage = Stage::new(Revalidate::Start);
    for name in ["plain", "secret", "sub/deep", "link", "sublink/deep"] {
        stage.copy(name, true);
    }
    stage
}

#[test]
fn children_get_copies_too() {
    let expected = "fork read 15 'copied of plain'
copied of plain
parent read 15 'copied of plain'
";
    assert_eq!(stage().preloaded("children"), expected);
}

#[test]
fn threads_and_signal_handlers_read_at_once() {
    let stage = stage();
    let native = stage.native("storm");
    assert_eq!(stage.preloaded("storm"), native);
    assert!(native.starts_with("descriptor left "));
    assert!(stage.board.header().totals(Some(0)).opens > 10_000);
}

#[test]
fn cached_directory_names_are_never_mixed_up() {
    let mut stage = stage();
    for number in 0..150 {
        let name = format!("crowd/{number}/file");
        fs::create_dir_all(stage.source(&name).parent().unwrap()).unwrap();
        fs::write(stage.source(&name), format!("source {number}")).unwrap();
        stage.copy(&name, true);
    }
    assert_eq!(stage.preloaded("crowd"), "good\n".repeat(8));
}

#[test]
fn a_reused_descriptor_is_not_taken_for_an_unrelated_directory() {
    let expected = "root read 15 'copied of plain'
upwards read 15 'copied of plain'
the same number
below read 16 'copied of sub/de'
";
    assert_eq!(stage().preloaded("far"), expected);
}

#[test]
fn the_shim_runs_on_a_small_signal_stack() {
    assert_eq!(stage().preloaded("small-stack"), "returned\n");
}

#[test]
fn a_process_that_drops_privileges_reads_only_what_it_may() {
    if !rustix::process::geteuid().is_root() {
        not_run("only root can become another user");
        return;
    }
    let stage = stage();
    let native = stage.native("rights");
    assert!(native.contains("secret = -1 errno 13"), "{native}");
    assert_eq!(stage.preloaded("rights"), native);
}

#[test]
fn files_opened_before_the_shim_is_ready_are_read_from_the_source() {
    let stage = stage();
    let early = stage.path("early.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hooks/early.c");
    compile(Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&early).arg(source));
    let library = stage.library.display().to_string();
    let early = early.display().to_string();
    let orders = [format!("{library}:{early}"), format!("{early}:{library}")];
    let printed = orders.map(|order| {
        let mut command = stage.command(&probe(stage.base.path()), "plain");
        command.env("LD_PRELOAD", order).env(VARIABLE, stage.attach());
        output(command.env("PROBE_EARLY", stage.path("given/plain")))
    });
    // In one of the two orders the other library is initialised first.
    assert!(printed.iter().any(|text| text.starts_with("early 'source'")), "{printed:?}");
    for text in printed {
        assert!(text.starts_with("early '") && text.ends_with("'copied of plain'\n"), "{text}");
    }
}
