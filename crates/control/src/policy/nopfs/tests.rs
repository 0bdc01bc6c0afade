//! Unit tests of the `nopfs` policy.

use super::*;
use crate::policy::testing::{Driver, job};
use crate::sampler::{Batching, EpochList, Order, OrderError, OrderProvider, StreamConfig};

const OPTIONS: NopfsOptions = NopfsOptions {
    in_order: true,
    cleanup_read: false,
    availability: Availability::Heuristic,
    duties: None,
};

/// The testing job in torch's order, over several epochs.
fn shuffled(samples: u32, nodes: u32, capacities: &[u64], epochs: u32) -> Arc<Job> {
    let mut job = job(samples, nodes, 1, capacities);
    let config = StreamConfig { order: Order::Torch, ..job.stream.config().clone() };
    job.stream = crate::sampler::AccessStream::new(config).unwrap();
    job.epochs = Some(epochs);
    Arc::new(job)
}

fn accesses(job: &Job, node: NodeId) -> NodeAccesses {
    let mut accesses = NodeAccesses::new(node, job.sizes.len() as usize);
    for epoch in 0..job.epochs.unwrap() {
        let order = job.stream.epoch(epoch);
        for iteration in 0..order.iterations() {
            accesses.see(order.batch(node, iteration));
        }
    }
    accesses
}

#[test]
fn the_most_frequent_are_in_the_fastest_tier() {
    let job = shuffled(60, 3, &[50, 100], 9);
    let seen = accesses(&job, 1);
    let counts = seen.counts.clone();
    let plan = seen.place(&job, OPTIONS);
    let least = |tier: usize| plan.lists[tier].iter().map(|&k| counts[k as usize]).min();
    let most = |tier: usize| plan.lists[tier].iter().map(|&k| counts[k as usize]).max();
    assert_eq!((plan.lists[1].len(), plan.lists[2].len()), (5, 10));
    assert!(least(1) >= most(2), "{:?} {:?}", least(1), most(2));
    let left_out =
        (0..60).filter(|&k| !plan.planned[1].contains(k) && !plan.planned[2].contains(k));
    assert!(least(2) >= left_out.map(|k| counts[k as usize]).max());
}

#[test]
fn a_node_counts_what_its_own_ranks_read() {
    let job = job(24, 3, 2, &[1000]);
    let order = job.stream.epoch(0);
    for node in 0..3 {
        let mut seen = NodeAccesses::new(node, 24);
        seen.see_epoch(&job, &order);
        // Six ranks take the samples in turn.
        let ours: Vec<u16> = (0..24).map(|sample| u16::from(sample % 6 / 2 == node)).collect();
        assert_eq!(seen.counts, ours);
    }
}

#[test]
fn more_nodes_times_tiers_than_can_be_numbered_are_refused() {
    let job = Arc::new(job(10, 1 << 15, 1, &[10]));
    assert!(plan(&job, OPTIONS).is_err_and(|error| error.0.contains("65535")));
}

#[test]
fn a_peer_is_believed_to_have_what_this_node_has_passed_in_its_own_list() {
    let job = shuffled(40, 4, &[60, 40], 3);
    let plan = plan(&job, OPTIONS).unwrap();
    let placement = NopfsPlacement::new(&job, OPTIONS, |counts| {
        drive(&job.stream, 0..3, counts, |accesses, _, order| accesses.see_epoch(&job, order));
    });
    let lists = &placement.nodes[0].lists;
    for arrived in 0..=lists[1].len() {
        let mut node = Driver::new(&plan, 0);
        for &sample in &lists[1][..arrived] {
            node.on(Event::Fetched { tier: 1, sample });
        }
        let mut asked = 0;
        for sample in 0..40 {
            let holder = usize::from(placement.holder[sample as usize]);
            let (at, tier) = ((holder / 3) as NodeId, holder % 3);
            if holder == 0 || at == 0 || placement.nodes[0].planned[1].contains(sample) {
                continue;
            }
            // Nothing of the second tier has arrived.
            let passed =
                arrived == lists[1].len() || arrived > placement.offset[sample as usize] as usize;
            let believed = tier == 1 && passed;
            let from = node.stage(0, (0, 0), &[sample])[0].from;
            let expected =
                if believed { LoadFrom::Peer(at, tier as TierId) } else { LoadFrom::Source };
            assert_eq!(from, expected, "{sample} after {arrived}");
            asked += 1;
        }
        assert!(asked > 5, "{asked}");
    }
}

#[test]
fn tiers_are_filled_in_the_order_of_first_access() {
    let job = shuffled(60, 3, &[100], 5);
    let seen = accesses(&job, 0);
    let first = seen.first_reads.clone();
    let plan = seen.place(&job, OPTIONS);
    let at = |sample: SampleId| first.iter().position(|&k| k == sample).unwrap();
    assert!(plan.lists[1].windows(2).all(|pair| at(pair[0]) < at(pair[1])));
}

#[test]
fn a_sample_that_the_prefetcher_has_not_reached_is_kept_on_the_way() {
    let job = shuffled(12, 1, &[1000], 2);
    let plan = plan(&job, OPTIONS).unwrap();
    let mut node = Driver::new(&plan, 0);
    let load = node.stage(0, (0, 0), &[3])[0];
    assert_eq!((load.from, load.keep), (LoadFrom::Source, Some(1)));
    let again = node.stage(0, (1, 0), &[3])[0];
    assert_eq!((again.from, again.keep), (LoadFrom::Local(1), None));
    // And the prefetcher leaves it out.
    let fetches = node.on(Event::Idle { tier: 1, limit: 100 }).fetches.clone();
    assert_eq!(fetches.len(), 11);
    assert!(fetches.iter().all(|fetch| fetch.sample != 3));
}

#[test]
fn an_open_ended_run_is_planned_by_its_first_epochs() {
    let mut open = (*shuffled(60, 3, &[100], 1)).clone();
    open.epochs = None;
    let open = Arc::new(open);
    let long = shuffled(60, 3, &[100], LOOK_AHEAD);
    let fetched = |job: &Arc<Job>| {
        let plan = plan(job, OPTIONS).unwrap();
        Driver::new(&plan, 1).on(Event::Idle { tier: 1, limit: 100 }).fetches.clone()
    };
    assert_eq!(fetched(&open).len(), 10);
    assert_eq!(fetched(&open), fetched(&long));
    let last_reads = NopfsOptions { cleanup_read: true, ..OPTIONS };
    assert!(plan(&open, last_reads).is_err(), "the last read of a sample is not known");
}

/// Gives each epoch once.
#[derive(Debug)]
struct Once(std::sync::Mutex<Vec<u32>>);

impl OrderProvider for Once {
    fn epoch(&self, epoch: u32) -> Result<Option<EpochList>, OrderError> {
        self.0.lock().unwrap().push(epoch);
        let samples = vec![5, 5, epoch, 7];
        Ok(Some(EpochList { samples, batches: Batching::Ends(vec![3, 4]) }))
    }
}

#[test]
fn orders_that_come_one_by_one_are_counted_as_far_as_they_have_come() {
    let mut job = job(12, 1, 1, &[20]);
    let once = Arc::new(Once(std::sync::Mutex::default()));
    let order = Order::Provided(once.clone());
    let config = StreamConfig { order, ranks: 1, ..job.stream.config().clone() };
    job.stream = crate::sampler::AccessStream::new(config).unwrap();
    let job = Arc::new(job);
    let plan = plan(&job, OPTIONS).unwrap();
    assert!(once.0.lock().unwrap().is_empty(), "not asked before the run");
    let epochs = [0, 1].map(|epoch| Arc::new(job.stream.ask(epoch).unwrap().unwrap()));
    plan.begin_epoch(0, &epochs[0], Some(&epochs[1]));
    let mut node = Driver::new(&plan, 0);
    // 5 is read four times, 7 twice, 0 and 1 once: two fit.
    let fetches = node.on(Event::Idle { tier: 1, limit: 9 }).fetches.clone();
    assert_eq!(fetches, [Fetch { sample: 5 }, Fetch { sample: 7 }]);
    assert_eq!(*once.0.lock().unwrap(), [0, 1]);
}

/// A sample that node 0 is not to hold and another one is, and that one.
fn held_elsewhere(plan: &Arc<dyn PolicyPlan>) -> (SampleId, NodeId) {
    let found = (0..40).map(|sample| (sample, plan.holders(sample)));
    let mut elsewhere = found.filter(|(_, holders)| holders.len() == 1 && holders[0] != 0);
    let (sample, holders) = elsewhere.next().unwrap();
    (sample, holders[0])
}

#[test]
fn a_peer_is_asked_once_it_is_believed_to_have_the_sample() {
    let job = shuffled(40, 4, &[200], 3);
    let known = plan(&job, NopfsOptions { availability: Availability::Known, ..OPTIONS }).unwrap();
    let (sample, holder) = held_elsewhere(&known);
    let from = Driver::new(&known, 0).stage(0, (0, 0), &[sample])[0].from;
    assert_eq!(from, LoadFrom::Peer(holder, 1));
    // The holder itself reads it from the source, which is slower than no peer.
    let from = Driver::new(&known, holder).stage(holder, (0, 0), &[sample])[0];
    assert_eq!((from.from, from.keep), (LoadFrom::Source, Some(1)));

    let guessed = plan(&job, OPTIONS).unwrap();
    let mut node = Driver::new(&guessed, 0);
    assert_eq!(node.stage(0, (0, 0), &[sample])[0].from, LoadFrom::Source);
    let own = node.on(Event::Idle { tier: 1, limit: 100 }).fetches.clone();
    for fetch in own {
        node.on(Event::Fetched { tier: 1, sample: fetch.sample });
    }
    assert_eq!(node.stage(0, (0, 1), &[sample])[0].from, LoadFrom::Peer(holder, 1));
}

#[test]
fn a_network_slower_than_the_source_is_not_used() {
    let mut job = (*shuffled(40, 4, &[200], 3)).clone();
    job.system.network = crate::model::Rate(1.0);
    let options = NopfsOptions { availability: Availability::Known, ..OPTIONS };
    let plan = plan(&Arc::new(job), options).unwrap();
    let (sample, _) = held_elsewhere(&plan);
    assert_eq!(Driver::new(&plan, 0).stage(0, (0, 0), &[sample])[0].from, LoadFrom::Source);
}

#[test]
fn a_sample_goes_after_its_last_read_and_is_not_fetched_again() {
    let job = shuffled(4, 1, &[1000], 2);
    let plan = plan(&job, NopfsOptions { cleanup_read: true, ..OPTIONS }).unwrap();
    let mut node = Driver::new(&plan, 0);
    node.stage(0, (0, 0), &[3]);
    assert!(node.consumed(0, (0, 0), &[3]).evictions.is_empty());
    assert_eq!(node.stage(0, (1, 0), &[3])[0].from, LoadFrom::Local(1));
    let last = node.consumed(0, (1, 0), &[3]).evictions.clone();
    assert_eq!(last, [Evict { sample: 3, tier: 1 }]);
    let fetches = node.on(Event::Idle { tier: 1, limit: 2 }).fetches.len();
    assert_eq!(fetches, 2, "no more than asked for");
    let rest = node.on(Event::Idle { tier: 1, limit: 9 }).fetches.clone();
    assert_eq!(rest.len(), 1, "three are left to fetch in all");
}

#[test]
fn what_a_peer_has_lost_comes_from_the_own_tier_or_the_source() {
    let job = shuffled(12, 1, &[1000], 2);
    let plan = plan(&job, OPTIONS).unwrap();
    let mut node = Driver::new(&plan, 0);
    node.stage(0, (0, 0), &[3]);
    let missed = |sample| Event::Missed { rank: 0, sample, peer: 1 };
    // On its way into the tier: the load that is made again keeps it.
    let again = node.on(missed(3)).loads[0];
    assert_eq!((again.from, again.keep), (LoadFrom::Source, Some(1)));
    node.on(Event::Fetched { tier: 1, sample: 5 });
    let held = node.on(missed(5)).loads[0];
    assert_eq!((held.from, held.keep), (LoadFrom::Local(1), None));
}

#[test]
fn holders_are_all_nodes_that_plan_to_hold_a_sample() {
    let (job, options) = (shuffled(40, 4, &[200], 3), OPTIONS);
    let plan = NopfsPlacement::new(&job, options, |counts| {
        drive(&job.stream, 0..3, counts, |accesses, _, order| accesses.see_epoch(&job, order));
    });
    let nopfs = super::plan(&job, options).unwrap();
    for sample in 0..40 {
        let lists = |node: &NodeId| &plan.nodes[*node as usize].lists;
        let naive: Vec<NodeId> = (0..4).filter(|node| lists(node)[1].contains(&sample)).collect();
        assert_eq!(nopfs.holders(sample), naive);
    }
    assert!((0..40).any(|sample| nopfs.holders(sample).len() > 1));
}
