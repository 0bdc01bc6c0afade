//! Which samples to hold and in which tier, before asking where.

use super::NOWHERE;
use super::balance::even_classes;
use super::transition::{Transition, Users};
use crate::bits::Bits;
use crate::policy::TierId;
use crate::sampler::{EpochOrder, SampleId};

/// Left free in the caches: an epoch's occupancy wavers by a few samples a node while
/// one epoch's samples make room for the next one's.
const SLACK: f64 = 0.002;

/// Share of the dataset whose room is not dealt evenly by count but used to even out
/// bytes: enough to make up for what one epoch leaves behind within a hundredth of the
/// next (sizes that vary by a tenth leave some 0.03 % of an epoch).
const EVENING: f64 = 0.03;
/// The same as a share of the room: at least this, so that the last iterations of an epoch
/// are evened out too, and at most that, so that most is dealt evenly over both epochs.
const EVENING_OF_ROOM: (f64, f64) = (0.1, 0.5);

#[derive(Debug, Default)]
pub struct Wishes {
    /// By place among the candidates in this epoch's order; 0 for none.
    pub tier: Vec<TierId>,
    /// All candidates can be held.
    pub fits: bool,
}

impl Transition<'_> {
    /// The tier each candidate should be in, by its place in this epoch's order; 0 for
    /// none. Candidates are the samples that this epoch and the next both use.
    pub fn wishes(&self, users: &Users) -> Wishes {
        let Some(next) = self.next else { return Wishes::default() };
        let system = &self.job.system;
        let mut count = 0u32;
        let mut bytes = 0u64;
        let mut settled = 0u32;
        self.candidates(users, |sample| {
            count += 1;
            bytes += self.job.sizes.get(sample);
            settled += u32::from(self.spot(sample) != NOWHERE);
        });
        // What is on one node and fits there never moves, so nothing wavers.
        let all_on_one_node = system.nodes == 1 && system.cache_capacity().0 >= bytes;
        let slack = if all_on_one_node { 0.0 } else { SLACK };
        let capacities: Vec<f64> =
            (1..self.tiers).map(|tier| system.tier_total(tier).0 as f64 * (1.0 - slack)).collect();
        let fits = self.tiers > 1 && capacities.iter().sum::<f64>() >= bytes as f64;
        let share = |room: f64| room / bytes.max(1) as f64;
        let shares: Vec<f64> = capacities.iter().map(|&room| share(room)).collect();
        let tier = if !fits {
            self.choose(next, users, count, &shares, &capacities)
        } else if settled > 0 {
            self.leave_alone(users, count)
        } else {
            self.deal_tiers(next, &self.places(users), count, &shares)
        };
        Wishes { tier, fits }
    }

    /// The candidates in this epoch's order.
    fn candidates(&self, users: &Users, mut see: impl FnMut(SampleId)) {
        let repeats = &self.decision.repeats;
        for iteration in 0..self.order.iterations() {
            for rank in 0..self.ranks {
                for sample in self.uses(rank, iteration) {
                    if users.get(sample).is_some() && repeats.is_last(sample, iteration, rank) {
                        see(sample);
                    }
                }
            }
        }
    }

    /// By sample: its place among the candidates; `u32::MAX` for those that are none. This is
    /// as large as an order, so it is made when it is needed and not kept.
    fn places(&self, users: &Users) -> Vec<u32> {
        let mut place_of = vec![u32::MAX; self.job.sizes.len() as usize];
        let mut place = 0;
        self.candidates(users, |sample| {
            place_of[sample as usize] = place;
            place += 1;
        });
        place_of
    }

    /// Everything has a place but what the last epoch left out: the tiers stay as they are,
    /// and the rest goes where there is room.
    fn leave_alone(&self, users: &Users, count: u32) -> Vec<TierId> {
        let mut wish = Vec::with_capacity(count as usize);
        self.candidates(users, |sample| {
            let spot = self.spot(sample);
            let tier = (usize::from(spot) % self.tiers) as TierId;
            wish.push(if spot == NOWHERE { 1 } else { tier });
        });
        wish
    }

    /// Everything fits and nothing has a place yet: only the next epoch's load on the tiers
    /// matters, so they take turns in its order, each as often as its share.
    fn deal_tiers(
        &self,
        next: &EpochOrder,
        place_of: &[u32],
        count: u32,
        shares: &[f64],
    ) -> Vec<TierId> {
        let mut rest = 1.0;
        // The fastest tiers are filled; the last one in use takes what remains.
        let turns: Vec<f64> = shares
            .iter()
            .map(|&share| {
                let part = f64::min(share, rest);
                rest -= part;
                part
            })
            .collect();
        let mut credit = vec![0.0; turns.len()];
        let mut wish = vec![0; count as usize];
        for iteration in 0..next.iterations() {
            for rank in 0..self.ranks {
                for sample in next.batch(rank, iteration) {
                    let place = place_of[sample as usize];
                    if place == u32::MAX || wish[place as usize] != 0 {
                        continue;
                    }
                    let mut most = 0;
                    for (tier, turn) in turns.iter().enumerate() {
                        credit[tier] += turn;
                        if credit[tier] > credit[most] {
                            most = tier;
                        }
                    }
                    credit[most] -= 1.0;
                    wish[place as usize] = most as TierId + 1;
                }
            }
        }
        wish
    }

    /// Not everything fits: what is held is spread evenly over both epochs, and the last of
    /// the room evens out bytes.
    fn choose(
        &self,
        next: &EpochOrder,
        users: &Users,
        count: u32,
        shares: &[f64],
        capacities: &[f64],
    ) -> Vec<TierId> {
        let room: f64 = shares.iter().sum();
        let evening = (EVENING / room).clamp(EVENING_OF_ROOM.0, EVENING_OF_ROOM.1);
        let dealt: Vec<f64> = shares.iter().map(|share| share * (1.0 - evening)).collect();
        let to_first =
            |within: Option<&Bits>| self.to_first(next, self.places(users), count, within);
        let mut wish = even_classes(count as usize, to_first, &dealt);
        self.even_out(next, self.places(users), capacities, &mut wish);
        wish
    }

    /// The places of the candidates, in the order in which the next epoch uses them first; of
    /// those `within` a set of places only, if there is one.
    fn to_first(
        &self,
        next: &EpochOrder,
        mut place_of: Vec<u32>,
        count: u32,
        within: Option<&Bits>,
    ) -> Vec<u32> {
        let count = within.map_or(count as usize, Bits::count);
        let mut to_first = Vec::with_capacity(count);
        for iteration in 0..next.iterations() {
            for rank in 0..self.ranks {
                for sample in next.batch(rank, iteration) {
                    let place = std::mem::replace(&mut place_of[sample as usize], u32::MAX);
                    if place != u32::MAX && within.is_none_or(|within| within.contains(place)) {
                        to_first.push(place);
                    }
                }
            }
        }
        to_first
    }

    /// Deals the rest of the room so that, at every iteration of the next epoch, every
    /// node has read as much from the source since the epoch's start as any other: a node
    /// that lags would hold up all. Equal counts alone drift apart, since sizes differ.
    fn even_out(
        &self,
        next: &EpochOrder,
        mut place_of: Vec<u32>,
        capacities: &[f64],
        wish: &mut [TierId],
    ) {
        let nodes = self.behind.len();
        let mut slow = self.behind.clone();
        let mut room = capacities.to_vec();
        let mut used = 0.0;
        let mut total = 0.0;
        for iteration in 0..next.iterations() {
            for rank in 0..self.ranks {
                for sample in next.batch(rank, iteration) {
                    total += self.job.sizes.get(sample) as f64;
                }
            }
        }
        let slow_share = (1.0 - capacities.iter().sum::<f64>() / total.max(1.0)).max(0.0);
        let mut open = vec![];
        for iteration in 0..next.iterations() {
            open.clear();
            for rank in 0..self.ranks {
                let node = self.job.system.node_of(rank) as usize % nodes;
                for sample in next.batch(rank, iteration) {
                    let size = self.job.sizes.get(sample) as f64;
                    used += size;
                    // Only its first use counts.
                    let place = std::mem::replace(&mut place_of[sample as usize], u32::MAX);
                    let tier = if place == u32::MAX {
                        0
                    } else {
                        let place = place as usize;
                        if wish[place] == 0 {
                            open.push((node, place, size));
                        }
                        wish[place]
                    };
                    if tier == 0 {
                        slow[node] += size;
                    } else {
                        room[usize::from(tier) - 1] -= size;
                    }
                }
            }
            let fair = used * slow_share / nodes as f64;
            for &(node, place, size) in &open {
                // Half a sample too many is as good as half a sample too few.
                if slow[node] - fair < size / 2.0 {
                    continue;
                }
                let roomiest = (0..room.len()).max_by(|&a, &b| room[a].total_cmp(&room[b]));
                if let Some(tier) = roomiest.filter(|&tier| room[tier] >= size) {
                    room[tier] -= size;
                    slow[node] -= size;
                    wish[place] = tier as TierId + 1;
                }
            }
        }
    }
}
