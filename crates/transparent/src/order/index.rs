//! The positions of each file in an order.

use super::names::NameId;

/// The positions of all names in one list, and where those of a name start.
#[derive(Debug)]
pub struct OrderIndex {
    starts: Vec<u32>,
    places: Vec<u32>,
}

impl OrderIndex {
    pub fn of(order: &[NameId]) -> Self {
        let names = order.iter().map(|name| name.0 as usize + 1).max().unwrap_or(0);
        let mut starts = vec![0; names + 1];
        for name in order {
            starts[name.0 as usize + 1] += 1;
        }
        for name in 0..names {
            starts[name + 1] += starts[name];
        }
        let mut next = starts.clone();
        let mut places = vec![0; order.len()];
        for (place, name) in (0..).zip(order) {
            let slot = &mut next[name.0 as usize];
            places[*slot as usize] = place;
            *slot += 1;
        }
        Self { starts, places }
    }

    /// Returns a name's positions in ascending order; empty if it is not in the order.
    pub fn places(&self, name: NameId) -> &[u32] {
        let at = name.0 as usize;
        match self.starts.get(at..at + 2) {
            Some(&[start, end]) => &self.places[start as usize..end as usize],
            _ => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_index_agrees_with_a_search(order in prop::collection::vec(0u32..20, 0..60)) {
            let order: Vec<NameId> = order.into_iter().map(NameId).collect();
            let index = OrderIndex::of(&order);
            for name in (0..25).map(NameId) {
                let naive: Vec<u32> =
                    (0..).zip(&order).filter(|&(_, &there)| there == name).map(|(at, _)| at).collect();
                prop_assert_eq!(index.places(name), &naive[..]);
            }
        }
    }
}
