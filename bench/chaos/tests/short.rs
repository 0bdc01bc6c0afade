//! Two short runs; `chaos run` by default makes twenty long ones.

use std::process::Command;

use belady_testing::not_run;

#[test]
fn every_rank_gets_its_epochs_whatever_breaks() {
    let output = Command::new(env!("CARGO_BIN_EXE_chaos"))
        .args(["run", "--seeds", "2", "--epochs", "4", "--faults", "10"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{complained}");
    if complained.contains("disks are not filled") {
        not_run("no file system can be mounted, so no disk is filled");
    }
    assert!(said.contains("seed 0: ") && said.contains("seed 1: "), "{said}");
}
