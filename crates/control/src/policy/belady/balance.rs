//! Choosing a subset that is spread evenly over two orders at once.
//!
//! `belady` keeps a share of the samples from one epoch to the next. The kept ones
//! should be spread evenly over this epoch's slots, so that occupancy stays constant
//! while they are collected, and over the next epoch's slots, so that every rank has
//! the same share of slow reads in every iteration. Samples are the edges of a
//! bipartite graph between the two epochs' slots, and an even share of a regular
//! graph is a regular subgraph.
//!
//! Euler splitting finds one in linear time. Pair neighbours in the first order, and
//! pair neighbours in the second. Every sample then has one partner in each, so the
//! pairs form paths and cycles that alternate between the orders: colour them
//! alternately, and each pair, in either order, has one sample of each colour. One
//! colour is half of all samples with, in any stretch of either order, at most one
//! more or less than half. Halving again and again reaches any share; the sizes
//! halve too, so the whole costs two passes.

use crate::bits::Bits;

/// A set of edges: `to_second[i]` is the place in the second order of what stands at
/// place i in the first; `to_first` is its inverse.
#[derive(Clone, Debug)]
struct Edges {
    to_second: Vec<u32>,
    to_first: Vec<u32>,
}

/// Below this many, neighbours are so far apart in time that halving gains nothing.
const SMALLEST: usize = 64;

/// Deals `total` elements of two orders into classes 1, 2, ... with the given shares, each
/// evenly spread over both; class 0 takes what is left. `to_first` gives the places in the
/// first order of what stands at each place in the second, of those within a set of places in
/// the first only if there is one: it is asked again rather than remembered, since it is large.
/// The result is by place in the first order.
pub fn even_classes(
    total: usize,
    to_first: impl Fn(Option<&Bits>) -> Vec<u32>,
    shares: &[f64],
) -> Vec<u8> {
    let mut counts = vec![];
    let mut left = total;
    for share in shares {
        let count = ((total as f64 * share) as usize).min(left);
        counts.push(count);
        left -= count;
    }
    let mut undealt = even_subset(to_first(None), total - left);
    let mut class: Vec<u8> =
        (0..total as u32).map(|place| u8::from(undealt.contains(place))).collect();
    for (index, &count) in counts.iter().enumerate().take(counts.len().saturating_sub(1)) {
        // Of what is still undealt, `count` stay in this class, the rest moves on.
        let mut places = to_first(Some(&undealt));
        let ranks = undealt.ranks();
        for place in &mut places {
            *place = ranks.of(*place);
        }
        drop(ranks);
        let here = even_subset(places, count);
        let mut rest = undealt.clone();
        for (number, place) in (0..).zip(undealt.iter()) {
            if here.contains(number) {
                rest.remove(place);
            } else {
                class[place as usize] = index as u8 + 2;
            }
        }
        undealt = rest;
    }
    class
}

/// What undoes a permutation.
fn inverse(permutation: &[u32]) -> Vec<u32> {
    let mut inverse = vec![0; permutation.len()];
    for (from, &to) in (0..).zip(permutation) {
        inverse[to as usize] = from;
    }
    inverse
}

/// Chooses `count` elements, evenly in both orders. `to_first` is a permutation: the place in
/// the first order of what stands at each place in the second. The result is the set of the
/// places in the first order that are chosen.
fn even_subset(to_first: Vec<u32>, count: usize) -> Bits {
    let total = to_first.len();
    let mut chosen = Bits::new(total as u32);
    if count >= total {
        chosen.fill(total as u32);
        return chosen;
    }
    let mut edges = Edges { to_second: inverse(&to_first), to_first };
    // What `edges` indexes, as places in the first order of the whole.
    let mut places: Option<Vec<u32>> = None;
    let mut wanted = count;
    while wanted > 0 {
        let size = edges.to_second.len();
        if size <= SMALLEST || wanted == size {
            // Every (size/wanted)-th; the fraction is accumulated so that exactly
            // `wanted` are taken.
            for place in 0..size {
                if (place + 1) * wanted / size > place * wanted / size {
                    chosen.insert(places.as_ref().map_or(place as u32, |places| places[place]));
                }
            }
            break;
        }
        let colour = split(&edges);
        let half = colour.iter().filter(|&&second_half| !second_half).count();
        let rest_is = wanted > half;
        if rest_is {
            for (place, &second_half) in colour.iter().enumerate() {
                if !second_half {
                    chosen.insert(places.as_ref().map_or(place as u32, |places| places[place]));
                }
            }
            wanted -= half;
        }
        places = Some(
            (0..size)
                .filter(|&place| colour[place] == rest_is)
                .map(|place| places.as_ref().map_or(place as u32, |places| places[place]))
                .collect(),
        );
        edges = restrict(edges, &colour, rest_is);
    }
    chosen
}

/// Two-colours the elements so that neighbours in a pair of either order differ.
fn split(edges: &Edges) -> Vec<bool> {
    const NONE: u8 = 2;
    let size = edges.to_second.len();
    let mut colour = vec![NONE; size];
    // With an odd number one element has no partner in the first order: its path has
    // an end there and must be walked from that end.
    let lone = (size % 2 == 1).then_some(size - 1);
    for start in lone.into_iter().chain((0..size).step_by(2)) {
        if colour[start] != NONE {
            continue;
        }
        // The element from which the walk crosses to the second order.
        let mut at = start;
        let mut own = 0;
        if lone == Some(start) {
            colour[start] = own;
        } else {
            colour[start] = 0;
            at = start ^ 1;
            own = 1;
            colour[at] = own;
        }
        loop {
            let neighbour = edges.to_second[at] as usize ^ 1;
            if neighbour >= size {
                break;
            }
            let next = edges.to_first[neighbour] as usize;
            if colour[next] != NONE {
                break;
            }
            colour[next] = 1 - own;
            let partner = next ^ 1;
            if partner >= size || colour[partner] != NONE {
                break;
            }
            colour[partner] = own;
            at = partner;
        }
    }
    colour.into_iter().map(|colour| colour == 1).collect()
}

/// The edges of one colour, renumbered.
fn restrict(edges: Edges, colour: &[bool], keep: bool) -> Edges {
    let Edges { to_second: mut number, to_first: mut second } = edges;
    // `number` becomes the new place in the first order of each kept element.
    let mut count = 0;
    for (place, new) in number.iter_mut().enumerate() {
        if colour[place] == keep {
            *new = count;
            count += 1;
        }
    }
    second.retain(|&place| colour[place as usize] == keep);
    for place in &mut second {
        *place = number[*place as usize];
    }
    second.shrink_to_fit();
    number.truncate(count as usize);
    number.shrink_to_fit();
    for (new_second, &new_first) in second.iter().enumerate() {
        number[new_first as usize] = new_second as u32;
    }
    Edges { to_second: number, to_first: second }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn permutation(size: usize) -> impl Strategy<Value = Vec<u32>> {
        Just((0..size as u32).collect::<Vec<_>>()).prop_shuffle()
    }

    proptest! {
        #[test]
        fn takes_exactly_as_many_as_asked(
            (to_second, count) in (1usize..600)
                .prop_flat_map(|size| (permutation(size), 0..=size)),
        ) {
            let chosen = even_subset(inverse(&to_second), count);
            prop_assert_eq!(chosen.iter().count(), count);
        }

        #[test]
        fn classes_have_their_shares(
            (to_second, a, b) in (100usize..900)
                .prop_flat_map(|size| (permutation(size), 0.0f64..0.7, 0.0f64..0.7)),
        ) {
            let size = to_second.len();
            let to_first = inverse(&to_second);
            let within = |within: Option<&Bits>| {
                let mut places = to_first.clone();
                places.retain(|&place| within.is_none_or(|within| within.contains(place)));
                places
            };
            let class = even_classes(size, within, &[a, b]);
            let count = |wanted: u8| class.iter().filter(|&&c| c == wanted).count();
            let first = ((size as f64 * a) as usize).min(size);
            let second = ((size as f64 * b) as usize).min(size - first);
            prop_assert_eq!((count(1), count(2)), (first, second));
        }

        /// The naive judge: lists of what is undealt, and no set is asked for its ranks.
        #[test]
        fn classes_are_those_that_plain_lists_give(
            (to_first, shares) in (1usize..700).prop_flat_map(|size| {
                (permutation(size), prop::collection::vec(0.0f64..0.6, 0..4))
            }),
        ) {
            let within = |set: Option<&Bits>| -> Vec<u32> {
                let is_in = |place: &u32| set.is_none_or(|set| set.contains(*place));
                to_first.iter().copied().filter(is_in).collect()
            };
            let total = to_first.len();
            let mut left = total;
            let counts: Vec<usize> = shares
                .iter()
                .map(|share| {
                    let count = ((total as f64 * share) as usize).min(left);
                    left -= count;
                    count
                })
                .collect();
            let mut naive = vec![0u8; total];
            let mut undealt: Vec<u32> = (0..total as u32).collect();
            let mut rest = total - left;
            for class in 0..=counts.len() {
                // Those of this class stay, the others move on; first come those of no class.
                let renumbered = to_first.iter().filter_map(|place| undealt.binary_search(place).ok());
                let subset = even_subset(renumbered.map(|at| at as u32).collect(), rest);
                let (mut chosen, mut others) = (vec![], vec![]);
                for (at, &place) in (0..).zip(&undealt) {
                    if subset.contains(at) { &mut chosen } else { &mut others }.push(place);
                }
                let (stay, go_on) = if class == 0 { (others, chosen) } else { (chosen, others) };
                for place in stay {
                    naive[place as usize] = class as u8;
                }
                undealt = go_on;
                rest = counts.get(class).copied().unwrap_or(0);
            }
            prop_assert_eq!(even_classes(total, within, &shares), naive);
        }

        #[test]
        fn one_split_halves_every_pair_of_both_orders(
            to_second in (2usize..600).prop_flat_map(permutation),
        ) {
            let size = to_second.len();
            let to_first = inverse(&to_second);
            let colour = split(&Edges { to_second, to_first: to_first.clone() });
            for pair in 0..size / 2 {
                prop_assert!(colour[2 * pair] != colour[2 * pair + 1]);
                let (a, b) = (to_first[2 * pair] as usize, to_first[2 * pair + 1] as usize);
                prop_assert!(colour[a] != colour[b]);
            }
        }

        /// The naive judge: count the chosen in every stretch of both orders.
        #[test]
        fn every_stretch_has_its_share(
            (to_second, share) in (500usize..3000)
                .prop_flat_map(|size| (permutation(size), 0.05f64..0.95)),
        ) {
            let size = to_second.len();
            let chosen = even_subset(inverse(&to_second), (size as f64 * share) as usize);
            let chosen: Vec<bool> = (0..size as u32).map(|place| chosen.contains(place)).collect();
            let mut second = vec![false; size];
            for (first, &place) in to_second.iter().enumerate() {
                second[place as usize] = chosen[first];
            }
            let share = chosen.iter().filter(|&&c| c).count() as f64 / size as f64;
            for order in [&chosen, &second] {
                let mut taken = 0.0;
                for (place, &is_chosen) in order.iter().enumerate() {
                    taken += f64::from(u8::from(is_chosen));
                    let fair = (place + 1) as f64 * share;
                    // One per halving, and the last stride.
                    let halvings = (size as f64).log2() + 2.0;
                    prop_assert!((taken - fair).abs() <= halvings, "{taken} {fair} of {size}");
                }
            }
        }
    }
}
