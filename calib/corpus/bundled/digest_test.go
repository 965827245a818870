package bundled

// digest is that of the text.
const digest = "50b969e6ad0eee5ae41ec2771a92724ad4ee0d8da83dae9103ef97bfefd8347f"
