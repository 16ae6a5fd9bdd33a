// The colour tables cividis, viridis and magma, 256 entries each, as matplotlib publishes them (CC0), rounded to 8 bits.
// Rounding makes one pair of entries of cividis and two of viridis equal; one of each pair is moved by one step of one channel, so that every
// table is one-to-one and a pixel can be read back to its entry.
//
// `first` is entry 0. `steps` holds what to add for entries 1 to 255: all of red, then green, then blue; "m" adds nothing, "n" one, "l" takes one.

export interface Encoded {
  first: readonly [number, number, number];
  steps: string;
}

/** Blue over white to orange, for what is less, equal and more: entry, red, green, blue. Both arms darken alike. */
export const ratioAnchors = [
  [0, 12, 64, 120],
  [64, 58, 134, 190],
  [128, 247, 247, 247],
  [192, 204, 108, 20],
  [255, 110, 48, 0],
] as const;

export const cividis: Encoded = {
  first: [0, 34, 78],
  steps:
    "mmmmmmmmmmmmmmmmmmmmmmnqpqppooooooononononnonnonnnnnonnnnnnnnnnnnnnnnnnnnnnnnnnnnnmnnnnnnnnnmnnnnnnnnmnnnnnnmnnnnnnmnnnnnmnnnnnn" +
    "nmnnnnnnnnnnnnnnnnnnnnmnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnonnnnnnnnnnnnnnnnnnnnnnonnnnnnnnnnnnonnnnnnnnnonnnnnnnonnnnnnonnnnonnnmmm" +
    "nnnmnnnmnnmnnmnnmnnmnmnnmnnmnnmnnnmnnmnnnmnnmnnmnnmnnnmnnmnnmnnmnnnmnnmnnmnnmnnnmnnmnnmnnnmnnmnnmnnnmnnmnnnmnnmnnnmnnmnnnmnnnmnn" +
    "mnnnmnnnmnnnmnnnmnnnmnnnmnnnnmnnnmnnnnmnnnmnnnnmnnnnnmnnnnmnnnnnmnnnnnmnnnnnnmnnnnnnnmnnnnnnnnmnnnnnnnnnnnmnnnnnnnnnnnnnnnnnnno" +
    "noonoonoooonooooononmnmmlmmmmmlmmmmlmmmmmlmmmmmmmlmmmmmmmmmmmmmmmmmmmmmmmmmmmnmmmmmmmmnmmmmmnmmmmnmmmmnmmmnmmmnmmnmmnmmnmnmmnmmm" +
    "mmmmmnmmmmlmmmmmmmmmmmmmlmmmmmlmmmmlmmmlmmmlmmmlmmlmmlmlmmlmlmmlmlmlmlmlmlmllmllmlmlllmlllmllllmllllllllllkllllkllklklkkkkkmnno",
};

export const viridis: Encoded = {
  first: [68, 1, 84],
  steps:
    "mnmnmmmnmmmmnmmmmmmmmmmmmmmmmlmmmmlmmmlmmlmmlmlmmlmlmlmlmmlmlmlmlmlmlmlmlmlmlmlmlmlmmlmlmlmmlmlmmlmlmmlmmlmlmmlmmlmmlmlmmlmmlmmm" +
    "llnlmmmmmmlmmnmmmmmnmnmnmnnnmnnnnnonnnononononoonoooooooooooooooopooopoopoopopopopopopoppopoppoppoppoppoppoppoppopoppopopopoopo" +
    "nonononononononnonnnonnonnnonnonnnnonnnonnnnonnnnnonnnnnnonnnnnnnnnnonnnnnnnnnnnnnnnnnnnnnnnnnmnnnnnnnnnnnnnnnnnnmnnnnnnnnnnnnnn" +
    "nmnnnnnnnnnnnnnnnmnnnnnnnnnnnnmnnnnnnnnnmnnnnnnmnnnnnmnnnnmnnnmnnnmnnmnnnmnmnnmnnmnmnmnmnmnmnmnmnmnmmnmmnmnmmnmmnmmnmmnmmmnmmnm" +
    "onononnononnonnnonnnnnonnnnnnnmnnnnmnnnmnnmnmnmnmnmnmmnmmnmmmnmmmnmmmmmnmmmmmmmmnmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmlmmmmmml" +
    "mmmmlmmmlmmlmmlmmlmlmlmmllmlmlmllmlllmlllmllllllllllllllllllklllkllkllkllklklklkklklkklkklkklkkklkkklklkkllkllllmlmmnmnnnnnonoo",
};

export const magma: Encoded = {
  first: [0, 0, 4],
  steps:
    "nmmnmmnmnnnmnnnnnnnnonnnnnnonnonnonnonoononooonoonooonoonoonoononoononononoononononoononononoononoononoononoononoonoonoononoonoo" +
    "noononoononoonononononononnonnnonnnnnnnnnnnmnnmnnmnmnmnmmnmmnmmnmmmmnmmmmmnmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmlmmmmmmmmmlmmmmmmmmm" +
    "mnmmnmnmnmnmnnmnnmnnmnnmnmnmnmmnmmmmnmmlmmmmmlmmmlmmmmmmnmmmnmnmnmnnmnmnnmnnmnnmnmnnmnnmnmnmnnmnmnmnnmnmnmnmnmnmnmnmnmnnmnmnmnmn" +
    "mnnmnmnnmnnmnnmnnnnnmnnnnnonnnnonnonnonoonoonooonoooooonoooooooonoooooooonooooooonoooooonooooonooooonooooonooooonoooonooooonooo" +
    "nnonooopoooooooooopoooopoopoopopoopopopoopoooooonoonnonnnnmnnnmnmnmnmmnmmnmmmmnmmmmmmmmmmnmmmmlmmmmmmmmmmlmmmmlmmmlmmlmmlmlmmlml" +
    "mlmlmllmllmllmllmlllmllllmllllmllmllmllmmlmlmmmmmmmmmmnmmnmnmnnmnnnnnnnnnnnnnnonnnonnonnononononoononoonoonooonoooonooooooonooo",
};
