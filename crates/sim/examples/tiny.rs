//! Temporary.
use belady_scenario::{Scenario, Set};
fn main() {
    let mut args = std::env::args().skip(2);
    let path = args.next().unwrap();
    let (mut sets, mut policies) = (vec![], vec![]);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--policy" => policies.push(args.next().unwrap()),
            "--set" => sets.push(Set::parse(&args.next().unwrap()).unwrap()),
            _ => {}
        }
    }
    let mut scenario = Scenario::load(std::path::Path::new(&path), &sets).unwrap();
    if !policies.is_empty() {
        scenario.select(&policies).unwrap();
    }
    let outcomes = belady_sim::run::run(&scenario, &[], &|_, _, _| {}).unwrap();
    println!("{}", belady_sim::report::json(&outcomes));
}
