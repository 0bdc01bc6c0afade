//! Small numbers, one a sample, in as few bits as the largest of them needs.

/// A list of numbers; an empty list reads as zeros.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packed {
    /// Of one number: a power of two, so that none lies in two words.
    bits: u32,
    words: Vec<u64>,
}

impl Packed {
    /// Returns a list of zeros that can hold numbers up to `largest`.
    pub fn new(numbers: u32, largest: u16) -> Self {
        let bits = (u16::BITS - largest.leading_zeros()).max(1).next_power_of_two();
        let words = vec![0; (numbers as usize).div_ceil((u64::BITS / bits) as usize)];
        Self { bits, words }
    }

    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Returns the word that a number lies in, and its shift.
    #[inline]
    fn place(&self, at: u32) -> (usize, u32) {
        let bit = u64::from(at) * u64::from(self.bits);
        ((bit / 64) as usize, (bit % 64) as u32)
    }

    #[inline]
    fn mask(&self) -> u64 {
        (1 << self.bits) - 1
    }

    #[inline]
    pub fn get(&self, at: u32) -> u16 {
        let (word, shift) = self.place(at);
        self.words.get(word).map_or(0, |word| (word >> shift & self.mask()) as u16)
    }

    /// Sets a number.
    ///
    /// # Panics
    /// If the list is shorter.
    #[inline]
    pub fn set(&mut self, at: u32, number: u16) {
        let (word, shift) = self.place(at);
        let mask = self.mask();
        debug_assert!(u64::from(number) <= mask, "{number} is larger than the list's largest");
        let word = &mut self.words[word];
        *word = *word & !(mask << shift) | (u64::from(number) & mask) << shift;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agrees_with_a_plain_list(
            largest in 0u16..=u16::MAX,
            numbers in 1u32..300,
            steps in proptest::collection::vec((any::<u32>(), any::<u16>()), 0..200),
        ) {
            let mut packed = Packed::new(numbers, largest);
            let mut plain = vec![0u16; numbers as usize];
            for (at, number) in steps {
                let at = at % numbers;
                let number = if largest == u16::MAX { number } else { number % (largest + 1) };
                packed.set(at, number);
                plain[at as usize] = number;
            }
            for (at, &number) in (0..).zip(&plain) {
                prop_assert_eq!(packed.get(at), number);
            }
        }
    }

    #[test]
    fn an_empty_list_has_zeros_everywhere() {
        assert_eq!((Packed::default().get(0), Packed::default().get(1_000)), (0, 0));
    }

    #[test]
    fn numbers_up_to_two_take_two_bits_a_sample() {
        assert_eq!(Packed::new(14_000_000, 2).words.len() * 8, 3_500_000);
    }
}
