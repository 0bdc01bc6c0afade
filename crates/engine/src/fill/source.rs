//! Fills slots from the source: cuts items into requests and tasks, which ask the node's other jobs
//! first ([`siblings`]) and then [read](super::source_reads).

use std::sync::atomic::Ordering;

use belady_base::sync::Arc;
use belady_data::source::SampleLocation;

use super::source_reads::read_requests;
use super::{BatchFill, siblings};
use crate::pool::Task;

/// Records this close to each other are read in one request: a disk or a server takes longer for
/// two requests than for the bytes between them.
const NEIGHBOURS: u64 = 4 << 10;
/// Requests that one task makes at most.
const MOST_TOGETHER: usize = 8;
/// One request asks for at most this many bytes, so that others get their turn.
const REQUEST: u64 = 8 << 20;

/// Adds tasks that read items from the source.
pub fn tasks(fill: &BatchFill, mut items: Vec<u32>, tasks: &mut Vec<Task>) {
    let (batch, job) = (&fill.batch, &fill.batch.job);
    let location = |&index: &u32| job.source.catalog().location(batch.item(index).sample);
    if items.len() > 1 {
        items.sort_by_cached_key(location);
    }
    let mut all: Vec<Vec<u32>> = requests(&items, location).map(<[u32]>::to_vec).collect();
    // A few requests a task, so that the cost of a task does not outweigh fast reads, and enough
    // tasks for all threads.
    let threads = job.lane.threads() as usize;
    let at_once = job.source.together();
    let together = if job.one_at_a_time.load(Ordering::Relaxed) {
        all.len()
    } else if at_once > 1 {
        let most = (all.len() / threads).clamp(1, at_once);
        all = group_single_samples(all, most, |index| batch.size(index));
        1
    } else {
        (all.len() / (2 * threads)).min(MOST_TOGETHER)
    };
    for requests in all.chunks(together.max(1)) {
        let (fill, requests) = (fill.clone(), Arc::from(requests));
        tasks.push(job.task(move |worker| {
            if let Some(rest) = siblings::fill(worker, &fill, &requests) {
                read_requests(worker, &fill, &rest, 0);
            }
        }));
    }
}

/// Submits tasks that read items from the source, before all other work.
pub fn submit(fill: &BatchFill, items: Vec<u32>) {
    let mut all = vec![];
    tasks(fill, items, &mut all);
    fill.batch.job.lane.submit_first_for(fill.batch.rank, all);
}

/// Groups requests for single samples, up to the number and bytes that one call should ask for,
/// since the time limit of a read is that of the whole call. Neighbours are one request already.
fn group_single_samples(
    all: Vec<Vec<u32>>,
    most: usize,
    size: impl Fn(u32) -> u64,
) -> Vec<Vec<u32>> {
    let (single, mut groups): (Vec<_>, Vec<_>) = all.into_iter().partition(|r| r.len() == 1);
    let (mut group, mut bytes) = (vec![], 0);
    for item in single.into_iter().flatten() {
        let length = size(item);
        if group.len() == most || (!group.is_empty() && bytes + length > REQUEST) {
            groups.push(std::mem::take(&mut group));
            bytes = 0;
        }
        group.push(item);
        bytes += length;
    }
    if !group.is_empty() {
        groups.push(group);
    }
    groups
}

/// Cuts items that are sorted by location into requests of neighbours.
fn requests<T>(
    sorted: &[T],
    location: impl Fn(&T) -> SampleLocation,
) -> impl Iterator<Item = &[T]> {
    let mut bytes = 0;
    sorted.chunk_by(move |before, after| {
        let (before, after) = (location(before), location(after));
        let end = before.offset.saturating_add(before.length);
        bytes += before.length;
        let near = before.file == after.file
            && after.offset >= end
            && after.offset - end <= NEIGHBOURS
            && bytes + after.length <= REQUEST;
        if !near {
            bytes = 0;
        }
        near
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn samples_that_fill_a_request_exactly_are_read_together() {
        let sizes = [REQUEST / 2, REQUEST / 2, 1];
        let all = vec![vec![0], vec![1], vec![2]];
        let groups = group_single_samples(all, 16, |index| sizes[index as usize]);
        assert_eq!(groups, [vec![0, 1], vec![2]]);
    }

    proptest! {
        #[test]
        fn grouped_samples_stay_within_one_request(
            sizes in prop::collection::vec(prop_oneof![0u64..1000, 1u64 << 18..40 << 20], 0..60),
            most in 1usize..17,
            pairs in prop::collection::vec(any::<bool>(), 60),
        ) {
            let size = |index: u32| sizes[index as usize];
            let items: Vec<u32> = (0..sizes.len() as u32).collect();
            // Requests of neighbours stay as they are.
            let all: Vec<Vec<u32>> = items
                .chunks(2)
                .zip(&pairs)
                .flat_map(|(two, &pair)| two.chunks(if pair { 2 } else { 1 }))
                .map(<[u32]>::to_vec)
                .collect();
            let groups = group_single_samples(all.clone(), most, size);
            for group in &groups {
                let bytes: u64 = group.iter().map(|&index| size(index)).sum();
                let as_before = all.contains(group);
                prop_assert!(as_before || group.len() <= most && bytes <= REQUEST);
            }
            // Groups are as large as the limits allow.
            let is_grouped = |group: &&Vec<u32>| !all.contains(group) || group.len() == 1;
            let alone: Vec<&Vec<u32>> = groups.iter().filter(is_grouped).collect();
            for two in alone.windows(2) {
                let bytes: u64 = two[0].iter().map(|&i| size(i)).sum::<u64>() + size(two[1][0]);
                prop_assert!(two[0].len() == most || bytes > REQUEST);
            }
            let mut seen = groups.concat();
            seen.sort_unstable();
            prop_assert_eq!(seen, items);
        }
    }
}
