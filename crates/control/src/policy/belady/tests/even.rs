//! Orders that leave samples out or repeat them, where the choice is to be even all the same.

use super::*;

/// One node with space for some samples of ten bytes, two a step, in the user's own orders.
pub fn given(samples: u32, space: u64, orders: Vec<Vec<SampleId>>) -> Job {
    let mut job = job(samples, 1, 1, &[10 * space]);
    job.epochs = Some(orders.len() as u32);
    let order = Order::Given(Arc::new(orders));
    job.stream = AccessStream::new(StreamConfig { order, ..job.stream.config().clone() }).unwrap();
    job
}

/// By how many samples the reads from the source of one epoch are ever ahead of or behind an even
/// line over its iterations.
fn unevenness(job: &Job, epoch: u32) -> f64 {
    let job = Arc::new(job.clone());
    let belady = Belady::new(job.clone());
    let orders: Vec<_> = (0..=epoch).map(|epoch| Arc::new(job.stream.epoch(epoch))).collect();
    for (at, order) in (0..epoch).zip(&orders) {
        belady.begin_epoch(at, order, orders.get(at as usize + 1));
    }
    let coming = belady.epoch(epoch).coming;
    let order = &orders[epoch as usize];
    let mut read = vec![0.0];
    for iteration in 0..order.iterations() {
        let slow = order.batch(0, iteration).filter(|&k| coming.spots.get(k) == NOWHERE).count();
        read.push(read[iteration as usize] + slow as f64);
    }
    let each = read[read.len() - 1] / f64::from(order.iterations());
    (0..).zip(&read).map(|(at, read)| (read - each * f64::from(at)).abs()).fold(0.0, f64::max)
}

#[test]
fn the_rest_of_the_space_is_dealt_evenly_where_some_is_held_for_the_next_epoch_already() {
    // The first epoch holds 0 to 49 for the last one, since the second uses none of what it uses.
    // The second has space for 50 of the 150 samples that the last one uses as well.
    let first = (0..200).collect();
    let second: Vec<SampleId> = (200..400).collect();
    // It uses what is held already in its first half, so the rest is held for the second.
    let last = (0..50).flat_map(|k| [200 + k, k]).chain(250..350).collect();
    let job = given(400, 100, vec![first, second, last]);
    assert_eq!(World::play(&Arc::new(job.clone())).unwrap().read, [2000, 2000, 1000]);
    let off = unevenness(&job, 2);
    assert!(off <= 4.0, "{off} samples");
}

#[test]
fn samples_that_are_repeated_at_once_leave_the_choice_even() {
    // Twenty samples near the end are used again one step later: they wait for little.
    let order: Vec<SampleId> = (0..180)
        .flat_map(|step| [2 * step, 2 * step + 1])
        .chain((0..10).flat_map(|step| {
            let k = 360 + 4 * step;
            [k, k + 1, k, k + 1]
        }))
        .chain((0..10).flat_map(|step| {
            let k = 362 + 4 * step;
            [k, k + 1]
        }))
        .collect();
    let job = given(400, 200, vec![order.clone(), order]);
    let off = unevenness(&job, 1);
    assert!(off <= 20.0, "{off} samples");
}

#[test]
fn where_the_next_epoch_needs_more_than_fits_the_choice_is_even() {
    // Each epoch leaves out a tenth; of the 320 samples that both use, 250 fit.
    let next = (0..40).flat_map(|k| (40 + 8 * k..48 + 8 * k).chain([360 + k])).collect();
    let orders = vec![(0..360).collect(), next];
    let off = unevenness(&given(400, 250, orders), 1);
    assert!(off <= 4.0, "{off} samples");
}
